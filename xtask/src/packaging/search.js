// Asks the search of a book that mdBook has built: node search.js BOOK RESULTS QUESTIONS.
// QUESTIONS is JSON: [{"text", "page", "search"}]. Prints a line for each whose page is not among the first RESULTS.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [book, count, questions] = process.argv.slice(2);

// File names have a hash in them, or not, depending on the version of mdBook.
function load(pattern) {
    const name = fs.readdirSync(book).find((file) => pattern.test(file));
    if (!name) throw new Error(`${book} has no file ${pattern}`);
    return fs.readFileSync(path.join(book, name), "utf8");
}

const page = vm.createContext({ search: {} });
page.window = page;
vm.runInContext(load(/^elasticlunr.*\.js$/), page);
vm.runInContext(load(/^searchindex.*\.js$/), page);
const config = page.search;
const index = page.elasticlunr.Index.load(config.index);

for (const question of JSON.parse(questions)) {
    const results = index.search(question.search, config.search_options).slice(0, Number(count));
    const found = results.map((result) => config.doc_urls[result.ref]);
    if (!found.some((url) => url.split("#")[0] === question.page)) {
        console.log(`search ${JSON.stringify(question.search)}: ${question.page} is not among ${found.join(", ")}`);
    }
}
