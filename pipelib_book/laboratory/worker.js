// Python beside the page: Pyodide with pallascope's checker and simulator, and one program on the bench.
// The first message is { files }, the addresses of what is needed, by name. Then a question is { id, open } with a
// program's text or { id, ask } with JSON for `Bench.answer`; the reply is { id, text }. Until the first reply,
// { done, of, what } tells how far the start is; { failed } says why there is none.

// What is brought first, part by part, so that the start can be told; a page may have it as blobs already.
async function bring(files, names) {
  const found = {};
  let done = 0;
  for (const name of names) {
    if (files[name] instanceof Blob) found[name] = files[name];
    else {
      const response = await fetch(files[name]), parts = [];
      if (!response.ok) throw new Error(`${name} is not there (${response.status}).`);
      const reader = response.body.getReader();
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        parts.push(part.value);
        done += part.value.length;
        postMessage({ done, of: files.bytes, what: "Python is brought" });
      }
      found[name] = new Blob(parts);
    }
  }
  return found;
}

async function start(files) {
  const names = ["pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json", "pallascope.zip"];
  const here = await bring(files, names);
  postMessage({ done: 1, of: 1, what: "Python starts" });
  const address = (name, type) => URL.createObjectURL(new Blob([here[name]], { type }));
  // Pyodide refuses workers that are no modules, and knows them by this. It needs import() only, which they have; and in a
  // page opened as a file a worker can be no module.
  self.importScripts = () => { throw new Error("Scripts are imported as modules here."); };
  const { loadPyodide } = await import(address("pyodide.mjs", "text/javascript"));
  const { default: createPyodideModule } = await import(address("pyodide.asm.mjs", "text/javascript"));
  // Pyodide asks for its machine code by an address of its own.
  const wasm = new Response(here["pyodide.asm.wasm"], { headers: { "Content-Type": "application/wasm" } }), fetched = self.fetch;
  self.fetch = (what, ...more) => (String(what.url ?? what).endsWith("pyodide.asm.wasm") ? Promise.resolve(wasm) : fetched(what, ...more));
  const python = await loadPyodide({
    indexURL: "https://pipelib.invalid/", packageBaseUrl: "https://pipelib.invalid/", createPyodideModule,
    stdLibURL: address("python_stdlib.zip", "application/zip"), lockFileContents: await here["pyodide-lock.json"].text(),
  });
  self.fetch = fetched;
  python.unpackArchive(await here["pallascope.zip"].arrayBuffer(), "zip", { extractDir: "/laboratory" });
  python.runPython(`
import sys
sys.path.insert(0, "/laboratory")
from pipelib_book.laboratory.bench import Bench
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

let started;

onmessage = async ({ data: { id, files, open, ask } }) => {
  if (files) {
    started = start(files);
    started.catch((error) => postMessage({ failed: String(error.message ?? error) }));
    return;
  }
  const bench = await started;
  try {
    postMessage({ id, text: open === undefined ? bench.ask(ask) : bench.put(open) });
  } catch (error) {
    // A fault of the laboratory's own: its last line says which.
    const said = String(error.message ?? error).trim().split("\n").at(-1);
    postMessage({ id, text: open === undefined ? JSON.stringify({ error: said }) : said });
  }
};
