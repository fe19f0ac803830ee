// FP16 and BF16 tensors, which JSON cannot hold: as the bytes of the protocol's binary extension, and back to numbers.

const HALVES = ["FP16", "BF16"];
const LENGTH = "inference-header-content-length";

const bits = new DataView(new ArrayBuffer(4));

function toHalf(value) {
  bits.setFloat32(0, value);
  const [word, sign] = [bits.getUint32(0), (bits.getUint32(0) >>> 16) & 0x8000];
  if (Number.isNaN(value)) return 0x7e00;
  const size = Math.abs(value);
  if (size >= 65520) return sign | 0x7c00;
  if (size < 2 ** -14) return sign | Math.round(size * 2 ** 24); // too small for a leading one
  return sign | ((((word & 0x7fffffff) + 0x0fff + ((word >>> 13) & 1)) >>> 13) - (112 << 10));
}

function fromHalf(half) {
  const [sign, exponent, rest] = [half & 0x8000 ? -1 : 1, (half >>> 10) & 31, half & 1023];
  if (exponent === 31) return rest ? NaN : sign * Infinity;
  return sign * (exponent ? (1 + rest / 1024) * 2 ** (exponent - 15) : rest * 2 ** -24);
}

function toBrain(value) {
  bits.setFloat32(0, value);
  const word = bits.getUint32(0);
  return Number.isNaN(value) ? 0x7fc0 : (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
}

function fromBrain(brain) {
  bits.setUint32(0, (brain << 16) >>> 0);
  return bits.getFloat32(0);
}

const TO = { FP16: toHalf, BF16: toBrain };
const FROM = { FP16: fromHalf, BF16: fromBrain };

// A v2 request as {body, type, headers}: JSON, or with bytes behind it where `outputs` or its own tensors need that.
export function encoded(request, outputs) {
  const isHalf = (tensor) => HALVES.includes(tensor.datatype);
  if (![...(request.inputs ?? []), ...outputs].some(isHalf)) return { body: JSON.stringify(request), type: "application/json", headers: {} };
  const blobs = [];
  const inputs = request.inputs.map((tensor) => {
    if (!isHalf(tensor)) return tensor;
    const { data, ...rest } = tensor;
    const numbers = data.flat(Infinity);
    const blob = new DataView(new ArrayBuffer(2 * numbers.length));
    numbers.forEach((value, i) => blob.setUint16(2 * i, TO[tensor.datatype](value), true));
    blobs.push(blob.buffer);
    return { ...rest, parameters: { binary_data_size: blob.byteLength } };
  });
  const asked = outputs.map(({ name, datatype }) => ({ name, parameters: { binary_data: HALVES.includes(datatype) } }));
  const head = new TextEncoder().encode(JSON.stringify({ ...request, inputs, outputs: request.outputs ?? asked }));
  return { body: new Blob([head, ...blobs]), type: "application/octet-stream", headers: { [LENGTH]: String(head.length) } };
}

// The JSON of an answer, with the numbers of what stands behind it as `data`.
export async function decoded(reply) {
  const length = reply.headers.get(LENGTH);
  if (length === null) return reply.json();
  const all = await reply.arrayBuffer();
  const body = JSON.parse(new TextDecoder().decode(all.slice(0, Number(length))));
  let at = Number(length);
  for (const output of body.outputs) {
    const size = output.parameters?.binary_data_size;
    if (size === undefined) continue;
    const view = new DataView(all, at, size);
    output.data = Array.from({ length: size / 2 }, (_, i) => FROM[output.datatype](view.getUint16(2 * i, true)));
    at += size;
  }
  return body;
}
