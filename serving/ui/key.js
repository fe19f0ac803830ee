// The API key that this page's requests carry, where the gateway wants one: kept in this tab alone, and sent to this gateway alone.
// Rule: it is in no address and in no text on the screen.

import { $ } from "/ui/dom.js";

const NAME = "tandem-api-key";
const SENDABLE = /^[\x21-\x7e]+$/; // of anything else no header can be made

let tell = () => {};

// fetch, with the key if there is one
export function ask(path, options = {}) {
  const key = sessionStorage.getItem(NAME);
  return fetch(path, { ...options, headers: { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) } });
}

export const hasKey = () => sessionStorage.getItem(NAME) !== null;

// Whether the gateway let us in; if not, the field is there, with its reason.
export async function isAllowed(reply) {
  const refused = reply.status === 401 || reply.status === 403;
  const why = refused ? (await reply.json()).error : "";
  if ($("key-why").textContent !== why) $("key-why").textContent = why; // is read aloud once
  $("key-form").hidden = !refused;
  $("key-forget").hidden = sessionStorage.getItem(NAME) === null;
  return !refused;
}

// `changed` is called when there is another key, or none.
export function onKey(changed) {
  tell = changed;
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = $("key").value.trim();
  if (!SENDABLE.test(key)) return ($("key-why").textContent = "An API key is letters, digits and _, as tdm_…");
  $("key").value = "";
  sessionStorage.setItem(NAME, key);
  tell();
});
$("key-forget").addEventListener("click", () => {
  sessionStorage.removeItem(NAME);
  tell();
});
