// Numbers as people read them. Null is a dash.

const DASH = "–";

export const number = (value, digits = 3) => (value === null || value === undefined || Number.isNaN(value) ? DASH : value === 0 ? "0" : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits))));

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return DASH;
  if (seconds === Infinity) return "over 10 s";
  if (seconds < 0.001) return `${number(seconds * 1e6)} µs`;
  if (seconds < 1) return `${number(seconds * 1000)} ms`;
  if (seconds < 120) return `${number(seconds, seconds < 10 ? 3 : 2)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${number(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

export const percent = (ratio) => (ratio === null ? DASH : ratio > 0 && ratio < 0.001 ? "< 0.1 %" : `${number(ratio * 100)} %`);
export const bytes = (size) => (size < 1e3 ? `${size} B` : size < 1e6 ? `${number(size / 1e3)} kB` : size < 1e9 ? `${number(size / 1e6)} MB` : `${number(size / 1e9)} GB`);
export const clock = (at) => new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
export const minutes = (at) => new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
