// Python beside the page: Pyodide with pipelib's checker and simulator, and one program on the bench.
// A question is { id, open } with a program's text or { id, ask } with JSON for `Bench.answer`; the reply is { id, text }.
// Until the first reply, { done, of, what } tells how far the start is.

// Sizes of what is brought first, in bytes, so that the start can be told in parts.
const BROUGHT = ["pyodide.asm.wasm", "python_stdlib.zip", "pyodide.asm.mjs"];

async function bring(folder, sizes) {
  const of = BROUGHT.reduce((sum, name) => sum + sizes[name], 0);
  let done = 0;
  for (const name of BROUGHT) {
    const response = await fetch(folder + name);
    if (!response.ok) throw new Error(`${name} is not there (${response.status}).`);
    const reader = response.body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      done += part.value.length;
      postMessage({ done, of, what: "Python is brought" });
    }
  }
}

async function start() {
  const folder = new URL("pyodide/", import.meta.url).href;
  await bring(folder, await (await fetch(folder + "sizes.json")).json());
  postMessage({ done: 1, of: 1, what: "Python starts" });
  const { loadPyodide } = await import(folder + "pyodide.mjs");
  const python = await loadPyodide({ indexURL: folder });
  const packed = await (await fetch(new URL("pipelib.zip", import.meta.url))).arrayBuffer();
  python.unpackArchive(packed, "zip", { extractDir: "/laboratory" });
  python.runPython(`
import sys
sys.path.insert(0, "/laboratory")
from pipelib.schedule.laboratory.bench import Bench
bench = None

def put(text):
    global bench
    try:
        bench = Bench(text)
    except ValueError as error:
        return str(error)
    return ""

def ask(question):
    return bench.answer(question)
`);
  return { put: python.globals.get("put"), ask: python.globals.get("ask") };
}

const started = start();
started.catch((error) => postMessage({ failed: String(error.message ?? error) }));

onmessage = async ({ data: { id, open, ask } }) => {
  const bench = await started;
  postMessage({ id, text: open === undefined ? bench.ask(ask) : bench.put(open) });
};
