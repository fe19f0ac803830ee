// A request of the playground as a program: curl, Python, tritonclient. With its pins, and without the key: that is read from TANDEM_API_KEY.

const NUMPY = { FP64: "float64", FP32: "float32", FP16: "float16", INT64: "int64", INT32: "int32", INT16: "int16", INT8: "int8", UINT64: "uint64", UINT32: "uint32", UINT16: "uint16", UINT8: "uint8", BOOL: "bool", BYTES: "object" };

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const python = (value) => JSON.stringify(value).replaceAll("true", "True").replaceAll("false", "False").replaceAll("null", "None");

// `request` as widgets.js makes it, `pins` as headers.
export function snippet(language, request, pins, hasKey) {
  return { curl: inShell, python: inPython, triton: withTriton }[language](request, pins, hasKey);
}

const BYTES = "# This request has bytes behind its JSON, which a text cannot show: see “tritonclient”.";

function inShell({ path, body, type, file }, pins, hasKey) {
  if (!file && typeof body !== "string") return BYTES;
  const headers = [`Content-Type: ${type}`, ...Object.entries(pins).map(([name, value]) => `${name}: ${value}`)].map((line) => ` \\\n  -H ${quoted(line)}`);
  if (hasKey) headers.push(' \\\n  -H "Authorization: Bearer $TANDEM_API_KEY"');
  return `curl -i ${location.origin}${path}${headers.join("")} \\\n  ${file ? `--data-binary @${quoted(file)}` : `-d ${quoted(body)}`}`;
}

function inPython({ path, body, type, file }, pins, hasKey) {
  if (!file && typeof body !== "string") return BYTES;
  const headers = Object.entries({ "Content-Type": type, ...pins }).map(([name, value]) => `    ${JSON.stringify(name)}: ${JSON.stringify(value)},`);
  if (hasKey) headers.push('    "Authorization": f"Bearer {os.environ[\'TANDEM_API_KEY\']}",');
  const data = file ? `open(${JSON.stringify(file)}, "rb").read()` : `json.dumps(${python(JSON.parse(body))}).encode()`;
  return `import json\n${hasKey ? "import os\n" : ""}from urllib.request import Request, urlopen\n\nheaders = {\n${headers.join("\n")}\n}\nbody = ${data}\nwith urlopen(Request("${location.origin}${path}", body, headers)) as answer:\n    print(answer.headers["Tandem-Pool"], answer.headers["Tandem-Request-Id"])\n    print(json.load(answer))`;
}

function withTriton({ path, v2 }, pins, hasKey) {
  if (!v2) return "# tritonclient sends tensors: choose “Tensors” above.";
  const name = decodeURIComponent(path.split("/")[3]);
  const inputs = v2.inputs.map((one, i) => `array_${i} = np.array(${python(one.data)}, np.${NUMPY[one.datatype] ?? "float32"}).reshape(${JSON.stringify(one.shape)})\ninput_${i} = triton.InferInput(${JSON.stringify(one.name)}, ${JSON.stringify(one.shape)}, ${JSON.stringify(one.datatype)})\ninput_${i}.set_data_from_numpy(array_${i})`);
  const headers = Object.entries(pins).map(([pin, value]) => `${JSON.stringify(pin)}: ${JSON.stringify(value)}`);
  if (hasKey) headers.push("\"Authorization\": f\"Bearer {os.environ['TANDEM_API_KEY']}\"");
  const told = headers.length ? `, headers={${headers.join(", ")}}` : "";
  return `${hasKey ? "import os\n\n" : ""}import numpy as np\nimport tritonclient.http as triton\n\nclient = triton.InferenceServerClient("${location.host}")\n${inputs.join("\n")}\nanswer = client.infer(${JSON.stringify(name)}, [${v2.inputs.map((_, i) => `input_${i}`).join(", ")}]${told})\nfor output in answer.get_response()["outputs"]:\n    print(output["name"], answer.as_numpy(output["name"]))`;
}
