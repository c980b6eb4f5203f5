// Colours configurations: the highlighter that mdBook brings does not know KDL.
"use strict";
hljs.registerLanguage("kdl", () => ({
    contains: [
        { className: "comment", begin: /\/\//, end: /$/ },
        { className: "string", begin: /#"/, end: /"#/ },
        { className: "string", begin: /"/, end: /"/, contains: [{ begin: /\\./ }] },
        { className: "attr", begin: /[a-z][a-z0-9-]*(?==)/ },
        { className: "keyword", begin: /^ *[a-z][a-z0-9-]*/ },
        // The first option of a block on the same line, and those after a semicolon.
        { begin: /[{;] *(?=[a-z])/, starts: { className: "keyword", end: /(?=[ ;}\n])/ } },
        { className: "number", begin: /\b[0-9]+\b/ },
    ],
}));
document.querySelectorAll("code.language-kdl").forEach((code) => hljs.highlightBlock(code));
