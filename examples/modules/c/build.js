// Makes a component of what the compiler made of hello.c.
import { readFile, writeFile } from "node:fs/promises";
import { componentEmbed, componentNew } from "@bytecodealliance/jco";

const binary = await readFile("hello.core.wasm");
const witSource = await readFile("module.wit", "utf8");
const embedded = await componentEmbed({ binary, witSource, worldName: "module" });
await writeFile("hello.wasm", await componentNew(embedded, []));
