// package.mjs PACKAGE DIGITS_JSON [MODEL TEXT] — tests of the npm package in Node.
//
// DIGITS_JSON is what `trunnion train digits --seed 7 --json` says after its steps, TEXT what `trunnion generate` answers
// to PROMPT: the package must compute the same. NETWORK, in the environment, is an ONNX file: two classes of a picture.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const [, , folder, digitsJson, modelPath, text] = process.argv;
const at = (name) => path.join(folder, name);
const { load, hasFusedSimd, TrunnionError, ...others } = await import(pathToFileURL(path.resolve(at('trunnion.js'))));
const PROMPT = 'Once upon a time, the';
let passed = 0, failed = 0;

async function test(name, run) {
  try {
    await run();
    passed++;
  } catch (error) {
    failed++;
    console.log(`${name}: ${error.stack ?? error}`);
  }
}

/** Calls `action`, which must throw a TrunnionError whose message matches. */
async function refuses(action, pattern) {
  await assert.rejects(async () => action(), (error) => error instanceof TrunnionError && pattern.test(error.message)
    || assert.fail(`expected ${pattern}, got ${error}`));
}

for (const relaxed of hasFusedSimd() ? [false, true] : [false]) {
  const kind = relaxed ? 'relaxed SIMD' : 'SIMD128';
  const trunnion = await load({ relaxed });
  console.log(`ran on: cpu: WebAssembly in Node ${process.version}, ${kind}`);

  await test(`digits, ${kind}: losses are those of the command`, async () => {
    const expected = JSON.parse(digitsJson), run = await trunnion.trainDigits(at('digits.csv'), { seed: 7 });
    let loss;
    for (let i = 0; i < expected.steps; i++) loss = await run.step();
    assert.equal(loss, expected.final_loss);
    assert.equal(await run.accuracy(), expected.metric);
    const chances = await run.predict(new Float32Array(64));
    assert.ok(Math.abs(chances.reduce((a, b) => a + b) - 1) < 1e-5, `probabilities ${chances}`);
    await refuses(() => run.predict([1, 2]), /64 pixels, not 2/);
    await run.close();
    await refuses(() => run.step(), /closed/);
    await refuses(() => trunnion.trainDigits(at('digits.csv'), { model: 'rnn' }), /mlp, cnn/);
    await refuses(() => trunnion.trainDigits(new TextEncoder().encode('1,2\n')), /line 1/);
  });

  await test(`files that are no models, ${kind}`, async () => {
    await refuses(() => trunnion.openModel(new Uint8Array([80, 75, 3, 4])), /not a GGUF file/);
    await refuses(() => trunnion.openModel(new Blob(['GGUF'])), /GGUF|short|truncated|bytes/);
    await refuses(() => trunnion.openModel('/nonexistent.gguf'), /cannot open '\/nonexistent.gguf'/);
    await refuses(() => trunnion.openOnnx(new TextEncoder().encode('no protobuf at all')), /byte|protobuf|ONNX/i);
    await refuses(() => trunnion.openOnnx(42), /a source is/);
    assert.deepEqual(trunnion.devices, ['cpu']);
    await refuses(() => trunnion.openOnnx(new Uint8Array(1), { device: 'webgpu' }), /webgpu: .*no WebGPU/);
    await refuses(() => trunnion.openOnnx(new Uint8Array(1), { device: 'cuda' }), /no device 'cuda': cpu/);
  });

  if (process.env.NETWORK) {
    await test(`ONNX, ${kind}`, async () => {
      const network = await trunnion.openOnnx(process.env.NETWORK);
      assert.deepEqual(network.inputs.map(({ name, type, shape }) => [name, type, shape]), [['picture', 'FLOAT', [1, 3, 8, 8]]]);
      const data = new Float32Array(192).fill(0, 64).fill(1, 0, 64);
      const { chances } = await network.run({ picture: { data, shape: [1, 3, 8, 8] } });
      assert.deepEqual(chances.shape, [1, 3]);
      assert.ok(chances.data[0] > 0.9, `red gets ${chances.data}`);
      await refuses(() => network.run({}), /input 'picture' was not given/);
      await refuses(() => network.run({ image: { data, shape: [192] } }), /no input 'image'; the model has 'picture'/);
      await refuses(() => network.run({ picture: { data: [1], shape: [1] } }), /must be a Float32Array/);
      await refuses(() => network.run({ picture: { data, shape: [1, 3, 8, 9] } }), /192 numbers do not make the shape/);
      await network.close();
      await network.close();
    });
  }

  if (modelPath) {
    await test(`language model, ${kind}`, async () => {
      const model = await trunnion.openModel(modelPath, { context: 256 }), pieces = [];
      assert.equal(model.facts.architecture, 'llama');
      assert.equal(model.facts.context, 256);
      const answer = await model.generate({ prompt: PROMPT, maxTokens: 8, greedy: true }, (piece) => pieces.push(piece));
      assert.equal(PROMPT + answer.text, text);
      assert.equal(pieces.join(''), answer.text);
      assert.ok(pieces.length >= 4, `the text came in ${pieces.length} pieces`);
      assert.equal(answer.stopped, 'length');
      assert.equal(answer.ids.length, 8);
      const again = await model.generate({ prompt: PROMPT, maxTokens: 8, greedy: true });
      assert.equal(again.text, answer.text);
      assert.equal(again.promptTokensComputed, 1);
      const stop = await model.generate({ prompt: PROMPT, maxTokens: 8, greedy: true, stop: [answer.text.slice(3, 8)] });
      assert.equal(stop.stopped, 'stop');
      assert.equal(stop.text, answer.text.slice(0, 3));
      const ending = new AbortController();
      const cut = await model.generate({ prompt: PROMPT, maxTokens: 8, greedy: true, signal: ending.signal }, () => ending.abort());
      assert.equal(cut.stopped, 'cancelled');
      assert.ok(cut.ids.length < 8);
      const one = await model.generate({ messages: [{ role: 'user', content: 'Hi' }], maxTokens: 2, temperature: 1, topK: 5, seed: 3 });
      const same = await model.generate({ messages: [{ role: 'user', content: 'Hi' }], maxTokens: 2, temperature: 1, topK: 5, seed: 3 });
      assert.deepEqual(one.ids, same.ids);
      await refuses(() => model.generate({ prompt: '' }), /empty/);
      await refuses(() => model.generate({}), /"prompt".*"messages"/);
      await refuses(() => model.generate({ prompt: 'a', temperature: -1 }), /"temperature"/);
      await refuses(() => model.generate({ prompt: 'a', temprature: 1 }), /"temprature"/);
      await refuses(() => model.generate({ prompt: 'word '.repeat(400) }), /the context only 256/);
      const busy = model.generate({ prompt: PROMPT, maxTokens: 2, greedy: true });
      await refuses(() => model.generate({ prompt: PROMPT }), /another answer/);
      await busy;
      await model.close();
    });
  }
}

await test('addresses beyond 2 GiB', async () => {
  const { Wasi } = await import(pathToFileURL(path.resolve(at('wasi.js'))));
  const { WebGpu } = await import(pathToFileURL(path.resolve(at('webgpu.js'))));
  const packed = new Blob([fs.readFileSync(at('trunnion.wasm.gz'))]).stream().pipeThrough(new DecompressionStream('gzip'));
  const module = await WebAssembly.compile(await new Response(packed).arrayBuffer()), wasi = new Wasi();
  const { exports } = await WebAssembly.instantiate(module, { ...wasi.imports(module), ...new WebGpu().imports() });
  wasi.memory = exports.memory;
  exports._initialize();
  for (let i = 0; i < 3; i++) assert.notEqual(exports.web_alloc(800 << 20), 0);
  const trunnion = new others.Trunnion(exports, wasi, false, 'not asked for'), run = await trunnion.trainDigits(at('digits.csv'), { seed: 7 });
  assert.ok(await run.step() > 0);
  assert.equal((await run.predict(new Float32Array(64))).length, 10);
  await refuses(() => trunnion.openModel(new Uint8Array(100).fill(65)), /'memory': byte 0.*not a GGUF file/);
  assert.ok(trunnion.memoryBytes > 2 ** 31);
});

await test('index.d.ts declares what trunnion.js exports', () => {
  const types = fs.readFileSync(at('index.d.ts'), 'utf8');
  const declared = [...types.matchAll(/^export (?:class|function) (\w+)/gm)].map((match) => match[1]);
  const exported = { load, hasFusedSimd, TrunnionError, ...others };
  assert.deepEqual(declared.sort(), Object.keys(exported).sort());
  for (const [, name, body] of types.matchAll(/^export class (\w+) \{\n([^]*?)^\}/gm)) {
    for (const [, member] of body.matchAll(/^ {2}(\w+)\(/gm))
      assert.equal(typeof exported[name].prototype[member], 'function', `${name}.${member} is declared`);
  }
});

console.log(`${passed} passed, ${failed} failed, ${modelPath ? 0 : 1} skipped`);
process.exit(failed ? 1 : 0);
