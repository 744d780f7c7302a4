// web.mjs PACKAGE MODEL [ROUNDS] — speed of the npm package in this Node: a prompt of 241 tokens, then 32 tokens, with both modules.
//
// Tokens per second of processor time, so that other work of the machine counts less. Rounds of the modules take turns;
// the best of each counts. Needs a Node whose engine has relaxed SIMD for the second module (22 or later).
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const [, , folder, modelPath, rounds = '3'] = process.argv;
const { load, hasFusedSimd } = await import(pathToFileURL(path.resolve(folder, 'trunnion.js')));
const WORDS = ' The quick brown fox jumps over the lazy dog near the old stone bridge.'.repeat(16);
const kinds = hasFusedSimd() ? ['SIMD128', 'relaxed SIMD'] : ['SIMD128'];
const best = {};

/** Seconds of processor time of this process. */
function used() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

const models = {};
for (const kind of kinds) {
  const trunnion = await load({ relaxed: kind === 'relaxed SIMD' }), start = performance.now();
  models[kind] = await trunnion.openModel(modelPath, { context: 512 });
  best[kind] = { prompt: 0, generation: 0, open: (performance.now() - start) / 1000, memory: trunnion.memoryBytes };
}
for (let round = 0; round < Number(rounds); round++) {
  for (const kind of kinds) { // the first word differs, so that nothing of the last prompt is kept
    const start = used();
    let first = 0;
    const request = { prompt: `${round}${WORDS}`, maxTokens: 33, greedy: true };
    const answer = await models[kind].generate(request, () => { first ||= used(); }), b = best[kind];
    b.tokens = answer.promptTokensComputed;
    b.prompt = Math.max(b.prompt, answer.promptTokensComputed / (first - start));
    b.generation = Math.max(b.generation, (answer.ids.length - 1) / (used() - first));
  }
}
for (const [kind, b] of Object.entries(best)) {
  console.log(`Node ${process.version}, ${kind}: opened in ${b.open.toFixed(2)} s, ${(b.memory / 1e6).toFixed(0)} MB; `
    + `${b.tokens} tokens read at ${b.prompt.toFixed(1)}/s, written at ${b.generation.toFixed(1)}/s`);
}
