// Starts Python inside node: `node run.mjs FOLDER_OF_PYODIDE FOLDER_OF_PACKAGES [ARGUMENTS OF PYTEST]`.
import { pathToFileURL } from "node:url";
import { resolve } from "node:path";

const [pyodide, packages, ...args] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(resolve(pyodide, "node_modules/pyodide/pyodide.mjs")));
const python = await loadPyodide({ env: { PYTEST_DISABLE_PLUGIN_AUTOLOAD: "1", PYTHONDONTWRITEBYTECODE: "1" } });
for (const [mount, folder] of [["/repo", "."], ["/packages", packages]]) {
  python.FS.mkdirTree(mount);
  python.mountNodeFS(mount, resolve(folder));
}
python.globals.set("ARGS", python.toPy(args));
process.exit(python.runPython(`
import os, sys
os.chdir("/repo")
sys.path[:0] = ["/repo/tests/pyodide", "/packages"]
from run import run
run(list(ARGS))
`));
