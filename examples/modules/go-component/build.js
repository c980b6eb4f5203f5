// Makes a component of what Go's toolchain made, which knows WASI 0.1: an adapter that comes with jco stands in between.
import { readFile, writeFile } from "node:fs/promises";
import { componentEmbed, componentNew } from "@bytecodealliance/jco";

const binary = await readFile("echo.core.wasm");
const witSource = await readFile("module.wit", "utf8");
const embedded = await componentEmbed({ binary, witSource, worldName: "module" });
const adapter = await readFile("node_modules/@bytecodealliance/jco/lib/wasi_snapshot_preview1.reactor.wasm");
await writeFile("echo.wasm", await componentNew(embedded, [["wasi_snapshot_preview1", adapter]]));
