// types.ts — a program that uses every declaration of index.d.ts; it is compiled by TypeScript with --strict, not run.
import { DigitsTraining, LanguageModel, OnnxModel, Trunnion, TrunnionError, hasFusedSimd, load } from 'trunnion';
import type { Certified, Device, GenerateRequest, GenerateResult, LoadOptions, ModelFacts, Numbers, OnnxEnd, Source, Tensor } from 'trunnion';

const options: LoadOptions = { relaxed: hasFusedSimd(), webgpu: true, onLine: (line) => line.trim() };

async function chat(trunnion: Trunnion, file: Source, signal: AbortSignal): Promise<string> {
  const model: LanguageModel = await trunnion.openModel(file, { context: 512, device: trunnion.devices[0] });
  const facts: ModelFacts = model.facts;
  const request: GenerateRequest = { messages: [{ role: 'user', content: facts.name }], topK: 4, stop: ['.'], signal };
  const result: GenerateResult = await model.generate(request, (text) => text.length);
  await model.generate({ prompt: 'Once', greedy: true, maxTokens: facts.layers });
  await model.close();
  return result.stopped === 'cancelled' ? '' : result.text + result.ids.map((id) => id.toFixed()).join();
}

async function classify(trunnion: Trunnion, bytes: Uint8Array): Promise<Numbers> {
  const network: OnnxModel = await trunnion.openOnnx(bytes);
  const ends: OnnxEnd[] = [...network.inputs, ...network.outputs], [first] = network.inputs;
  const input: Tensor = { data: new Float32Array(ends.length), shape: first!.shape };
  const output = (await network.run({ [first!.name]: input }))[network.outputs[0]!.name]!;
  await network.close();
  return output.data;
}

async function train(trunnion: Trunnion): Promise<number> {
  const run: DigitsTraining = await trunnion.trainDigits('digits.csv', { model: 'cnn', seed: 1 });
  const device: Device = run.device;
  const loss = await run.step() + (await run.predict(new Float32Array(64)))[0]! + run.steps + device.length;
  await run.close();
  return loss * await run.accuracy();
}

export async function all(): Promise<unknown> {
  const trunnion = await load(options);
  const { failed, ops }: Certified = await trunnion.certify({ device: 'cpu', only: ['add'], sample: 9 });
  try {
    if (failed) throw new Error(ops[0]!.why);
    await chat(trunnion, new Blob([]), new AbortController().signal);
    await classify(trunnion, new Uint8Array(4));
    return [await train(trunnion), trunnion.version.length, trunnion.memoryBytes + 1, trunnion.whyNoWebGpu?.length];
  } catch (error) {
    return error instanceof TrunnionError ? error.message : undefined;
  }
}

// What the declarations refuse.
export async function wrong(trunnion: Trunnion, model: LanguageModel, network: OnnxModel): Promise<void> {
  // @ts-expect-error: a file is no number
  await trunnion.openModel(1);
  // @ts-expect-error: there are two networks
  await trunnion.trainDigits('digits.csv', { model: 'rnn' });
  // @ts-expect-error: there are two devices
  await trunnion.openOnnx('a.onnx', { device: 'cuda' });
  // @ts-expect-error: a message has a content
  await model.generate({ messages: [{ role: 'user' }] });
  // @ts-expect-error: an option is misspelled
  await model.generate({ prompt: '', max_tokens: 1 });
  // @ts-expect-error: a tensor has a shape
  await network.run({ x: { data: new Float32Array(1) } });
  // @ts-expect-error: the version is only read
  trunnion.version = '';
}
