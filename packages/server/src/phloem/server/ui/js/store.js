// What outlives a reload: the theme and the switches for ever, the API key until the tab closes.

const forever = guarded(() => localStorage);
const session = guarded(() => sessionStorage);

export const preferences = { get: (name) => read(forever, name), set: (name, value) => write(forever, name, value) };

let key = read(session, "key") || "";

/** The API key, empty if there is none. */
export const apiKey = () => key;

export function setApiKey(value) {
  key = value;
  write(session, "key", value || null);
}

function guarded(open) {
  try {
    return open();
  } catch {
    return null; // The browser forbids it: then nothing is remembered.
  }
}

function read(storage, name) {
  try {
    return storage?.getItem(`phloem.${name}`) ?? null;
  } catch {
    return null;
  }
}

function write(storage, name, value) {
  try {
    if (value === null) storage?.removeItem(`phloem.${name}`);
    else storage?.setItem(`phloem.${name}`, value);
  } catch {
    // Full or forbidden.
  }
}
