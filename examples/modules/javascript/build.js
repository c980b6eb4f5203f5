// Makes a component of echo.js and the engine that runs it. It handles requests itself, without the event `fetch`.
import { writeFile } from "node:fs/promises";
import { componentize } from "@bytecodealliance/componentize-js";

const options = { sourcePath: "echo.js", witPath: "module.wit", worldName: "module", disableFeatures: ["fetch-event"] };
const { component } = await componentize(options);
await writeFile("echo.wasm", component);
