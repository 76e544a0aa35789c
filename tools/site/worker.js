// Python for the explorers of a page: the course's own code, in the reader's browser.
import { loadPyodide } from "./pyodide/pyodide.mjs";

async function load() {
  const python = await loadPyodide({ indexURL: new URL("pyodide/", import.meta.url).href });
  const course = await fetch(new URL("course.zip", import.meta.url));
  if (!course.ok) throw new Error(`course.zip: ${course.status}`);
  python.unpackArchive(await course.arrayBuffer(), "zip", { extractDir: "/course" });
  return python.runPython(`
import json, sys
sys.path.insert(0, "/course")
from course_utils.explore.in_page import drawn
lambda asked: json.dumps(drawn(**json.loads(asked)))
`);
}

const lastLine = (error) => String(error.message || error).trim().split("\n").pop();
const ready = load();
ready.catch((error) => self.postMessage({ lost: lastLine(error) }));

self.onmessage = async ({ data: { id, ...asked } }) => {
  const drawn = await ready;
  try {
    self.postMessage({ id, ...JSON.parse(drawn(JSON.stringify(asked))) });
  } catch (error) {
    self.postMessage({ id, error: lastLine(error) });
  }
};
