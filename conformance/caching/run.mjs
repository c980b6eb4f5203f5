// Runs http-tests/cache-tests against a cache, and counts the results. Fails if a required test does.
//
//   node run.mjs SUITE BASE [ID...]     SUITE: a clone of the suite; BASE: the cache's URL; ID: only these tests
//   node run.mjs SUITE origin PORT      the suite's own origin, for caches to stand before

import path from 'node:path'
import process from 'node:process'

const [directory, base, ...rest] = process.argv.slice(2)
const suite = path.resolve(directory)
const load = file => import(path.resolve(suite, file))

if (base === 'origin') {
  Object.assign(process.env, {
    npm_config_protocol: 'http', npm_config_port: rest[0], npm_config_pidfile: '/dev/null'
  })
  process.chdir(suite)
  await load('test-engine/server/server.mjs')
} else {
  await test()
}

async function test () {
  const all = (await load('tests/index.mjs')).default
  const { runTests, getResults } = await load('test-engine/client/runner.mjs')
  const { determineTestResult } = await load('test-engine/lib/results.mjs')
  const chosen = all.map(group => ({
    ...group,
    tests: group.tests.filter(test => !test.browser_only && (rest.length === 0 || rest.includes(test.id)))
  }))
  await runTests(chosen, false, base)
  const results = getResults()
  const counts = {}
  for (const test of chosen.flatMap(group => group.tests)) {
    const kind = test.kind ?? 'required'
    const result = rest.length === 0 ? determineTestResult(all, test.id, results)[2] : results[test.id] === true ? '✅' : '⛔️'
    counts[kind] ??= {}
    counts[kind][result] = (counts[kind][result] ?? 0) + 1
    if (!['✅', 'Y'].includes(result)) {
      console.log(`${result} ${kind} ${test.id}: ${[results[test.id]].flat().slice(1).join(' ')}`)
    }
  }
  console.log(JSON.stringify(counts))
  // Connections that are kept open would hold the process up.
  process.exit(counts.required?.['⛔️'] > 0 ? 1 : 0)
}
