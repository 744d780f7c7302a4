// trunnion.js — Trunnion for browsers and Node: language models, ONNX models, and training of the digits, in WebAssembly.
//
//   import { load } from 'trunnion';
//   const trunnion = await load();
//   const model = await trunnion.openModel(file);
//   const answer = await model.generate({ messages: [{ role: 'user', content: 'Hello' }] }, (text) => show(text));
//
// Computing on the CPU blocks the thread that calls: use a Worker in a browser. index.d.ts describes every function.
import { Exit, Wasi, blobFile, bytesFile } from './wasi.js';
import { WebGpu, findAdapter } from './webgpu.js';

const NODE = typeof process !== 'undefined' && process.versions?.node !== undefined;

/** What a failure of the library, or of a call, is thrown as; the message is the library's. */
export class TrunnionError extends Error {
  name = 'TrunnionError';
}

// ---- the module -----------------------------------------------------------------------------------------------------

// A module with two functions. f computes a·a + c by relaxed_madd, where a = 1 + 2^-12 and c is minus the rounded square:
// only a fused multiply-add leaves 2^-24, a product that is rounded first leaves 0. g adds 7 to four products of -3 and 5 by
// relaxed_dot_i8x16_i7x16_add: -53, unless the engine has the instruction wrong (V8 11.3 does).
const PROBE = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 9, 2, 96, 0, 1, 125, 96, 0, 1, 127, 3, 3, 2, 0, 1, 7, 9, 2, 1, 102, 0, 0, 1, 103, 0, 1,
  10, 52, 2,
  29, 0,
  67, 0, 8, 128, 63, 253, 19, // f32.const 1 + 2^-12; f32x4.splat
  67, 0, 8, 128, 63, 253, 19,
  67, 0, 16, 128, 191, 253, 19, // f32.const -(1 + 2^-11); f32x4.splat
  253, 133, 2, 253, 31, 0, 11, // f32x4.relaxed_madd; f32x4.extract_lane 0
  20, 0,
  65, 125, 253, 15, 65, 5, 253, 15, 65, 7, 253, 17, // i32.const -3; i8x16.splat; … 5; … 7; i32x4.splat
  253, 147, 2, 253, 27, 0, 11, // i32x4.relaxed_dot_i8x16_i7x16_add_s; i32x4.extract_lane 0
]);

/** Whether this engine has relaxed SIMD whose multiply-add rounds once: only then the results have the same bits. */
export function hasFusedSimd() {
  if (!WebAssembly.validate(PROBE)) return false;
  const { f, g } = new WebAssembly.Instance(new WebAssembly.Module(PROBE)).exports;
  return f() === 2 ** -24 && g() === -53;
}

async function fetched(url) {
  if (NODE && url.protocol === 'file:') return (await import('node:fs/promises')).readFile(url);
  const response = await fetch(url);
  if (!response.ok) throw new TrunnionError(`cannot load ${url}: HTTP status ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
}

/** Compiles a module that is packed by gzip, unless the server has unpacked it already. */
async function compile(url) {
  const bytes = await fetched(url);
  if (bytes[0] !== 0x1f) return WebAssembly.compile(bytes);
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return WebAssembly.compile(await new Response(unpacked).arrayBuffer());
}

/** Loads the module: see index.d.ts. */
export async function load({ relaxed = hasFusedSimd(), webgpu = true, onLine } = {}) {
  const name = relaxed ? './trunnion-relaxed.wasm.gz' : './trunnion.wasm.gz';
  const module = await compile(new URL(name, import.meta.url));
  const wasi = new Wasi(onLine), { adapter, why } = webgpu ? await findAdapter() : { why: 'load() was told to leave it alone' };
  const gpu = new WebGpu(adapter);
  const { exports } = await WebAssembly.instantiate(module, { ...wasi.imports(module), ...gpu.imports() });
  wasi.memory = exports.memory;
  gpu.exports = exports;
  exports._initialize();
  return new Trunnion(exports, wasi, relaxed, why);
}

/** The calling side of the module: texts and arrays in its memory, and errors. */
class Calls {
  #last = Promise.resolve(); // the end of the last action

  constructor(exports, wasi, waits) {
    this.exports = exports;
    this.wasi = wasi;
    this.waits = waits; // whether the module may wait for WebGPU
    this.stopped = null; // why no further call is possible
  }

  /** Runs an action that computes when those before have ended: a function that waits for WebGPU keeps its place on the stack. */
  exclusive(action) {
    const done = this.#last.then(action);
    this.#last = done.catch(() => {});
    return done;
  }

  #check() {
    if (this.stopped) throw new TrunnionError(`the module stopped earlier: ${this.stopped}; load() it again`);
  }

  /** What an error of the module is thrown as. A trap (memory ran out, a defect) ends the module. */
  #failure(error) {
    if (!(error instanceof WebAssembly.RuntimeError) && !(error instanceof Exit) && !(error instanceof RangeError)) return error;
    this.stopped = error.message;
    return new TrunnionError(`the module stopped: ${error.message}; load() it again`, { cause: error });
  }

  /** Calls an exported function that does not wait for WebGPU. */
  call(name, ...args) {
    this.#check();
    try {
      return this.exports[name](...args);
    } catch (error) {
      throw this.#failure(error);
    }
  }

  /** Calls a function that computes; only within exclusive(). On any device: memory of WebGPU may be freed in between. */
  async compute(name, ...args) {
    if (!this.waits) return this.call(name, ...args);
    this.#check();
    try {
      return await WebAssembly.promising(this.exports[name])(...args);
    } catch (error) {
      throw this.#failure(error);
    }
  }

  /** The result of a call, unless `failed` says that it failed: then the library's error is thrown. */
  check(result, failed) {
    if (!failed) return result;
    throw new TrunnionError(this.text(this.call('web_error')) || 'the call failed without an error text');
  }

  async checked(name, ...args) {
    const result = await this.compute(name, ...args);
    return this.check(result, result < 0);
  }

  #parsed(address) { return JSON.parse(this.text(this.check(address, address === 0))); }
  described(name, ...args) { return this.#parsed(this.call(name, ...args)); }
  async computedDescription(name, ...args) { return this.#parsed(await this.compute(name, ...args)); }

  text(address) {
    const bytes = new Uint8Array(this.exports.memory.buffer);
    const from = address >>> 0; // addresses from 2 GiB on come as negative numbers
    return new TextDecoder().decode(bytes.slice(from, bytes.indexOf(0, from)));
  }

  /** Calls use(address) with a copy of the bytes in the module's memory; frees it when the promise of `use` ends. */
  async with(bytes, use) {
    const address = this.call('web_alloc', bytes.length) >>> 0;
    if (address === 0) throw new TrunnionError(`no memory for ${bytes.length} bytes`);
    try {
      new Uint8Array(this.exports.memory.buffer, address, bytes.length).set(bytes);
      return await use(address);
    } finally {
      if (!this.stopped) this.call('web_free', address);
    }
  }

  withText(text, use) { return this.with(new TextEncoder().encode(text + '\0'), use); }

  /** A path for a file of this name; messages begin with it. */
  freePath(name) {
    let path = name;
    for (let i = 2; this.wasi.files.has(`/${path}`); i++) path = `${i}/${name}`;
    return path;
  }

  /** Opens an object from a file; the file stays known to the module as long as the object. */
  async open(device, name, path, file, ...args) {
    this.wasi.files.set(`/${path}`, file);
    try {
      return await this.withText(path, (at) => this.withText(device, async (deviceAt) => {
        const object = await this.compute(name, at, deviceAt, ...args);
        return this.check(object, object === 0);
      }));
    } catch (error) {
      this.closeFile(path, file);
      throw error;
    }
  }

  closeFile(path, file) {
    this.wasi.files.delete(`/${path}`);
    file.close?.();
  }
}

/** A path of Node, a Blob, or bytes, as a file of wasi.js and its name. */
async function toFile(source) {
  if (source instanceof Uint8Array) return { file: bytesFile(source), name: 'memory' };
  if (source instanceof ArrayBuffer) return { file: bytesFile(new Uint8Array(source)), name: 'memory' };
  if (NODE && (typeof source === 'string' || source instanceof URL)) return nodeFile(source);
  if (typeof Blob === 'undefined' || !(source instanceof Blob))
    throw new TrunnionError('a source is a Blob, an ArrayBuffer, a Uint8Array, or in Node a path');
  const name = source.name ?? 'blob';
  if (typeof FileReaderSync !== 'undefined') return { file: blobFile(source), name };
  return { file: bytesFile(new Uint8Array(await source.arrayBuffer())), name };
}

async function nodeFile(path) {
  const fs = await import('node:fs');
  let descriptor;
  try {
    descriptor = fs.openSync(path, 'r');
  } catch (error) {
    throw new TrunnionError(`cannot open '${path}': ${error.message}`, { cause: error });
  }
  const file = {
    size: fs.fstatSync(descriptor).size,
    read: (offset, target) => fs.readSync(descriptor, target, 0, target.length, offset),
    close: () => fs.closeSync(descriptor),
  };
  return { file, name: String(path).split(/[\\/]/).pop() };
}

export class Trunnion {
  #calls;

  constructor(exports, wasi, relaxed, whyNoWebGpu) {
    this.#calls = new Calls(exports, wasi, !whyNoWebGpu);
    this.version = this.#calls.text(exports.web_version());
    this.relaxed = relaxed;
    this.devices = whyNoWebGpu ? ['cpu'] : ['cpu', 'webgpu'];
    this.whyNoWebGpu = whyNoWebGpu ?? null;
  }

  /** Bytes that the module has taken from the system. */
  get memoryBytes() { return this.#calls.exports.memory.buffer.byteLength; }

  #checkDevice(device) {
    if (this.devices.includes(device)) return;
    throw new TrunnionError(device === 'webgpu' ? `webgpu: ${this.whyNoWebGpu}` : `no device '${device}': ${this.devices.join(', ')}`);
  }

  async #open(type, device, name, source, ...args) {
    this.#checkDevice(device);
    const { file, name: given } = await toFile(source), calls = this.#calls;
    return calls.exclusive(async () => {
      const path = calls.freePath(given), object = await calls.open(device, name, path, file, ...args);
      return new type(calls, device, object, () => calls.closeFile(path, file));
    });
  }

  async certify({ device = 'cpu', only = [], sample = 1 } = {}) {
    this.#checkDevice(device);
    const calls = this.#calls;
    return calls.exclusive(() => calls.withText(device, (at) => calls.withText(only.join(), (onlyAt) =>
      calls.computedDescription('web_certify', at, onlyAt, sample))));
  }

  async openModel(source, { context = 0, device = 'cpu' } = {}) {
    return this.#open(LanguageModel, device, 'web_chat_open', source, context);
  }

  async openOnnx(source, { device = 'cpu' } = {}) { return this.#open(OnnxModel, device, 'web_onnx_open', source); }

  async trainDigits(table, { model = 'mlp', seed = 0, device = 'cpu' } = {}) {
    return this.#calls.withText(model, (kind) => this.#open(DigitsTraining, device, 'web_digits_open', table, kind, seed));
  }
}

/** An object of the module. */
class Handle {
  #close;

  constructor(calls, device, object, close) {
    this.calls = calls;
    this.device = device;
    this.object = object;
    this.#close = close;
  }

  /** Frees it; nothing else may be called afterwards. */
  async close() {
    if (this.object === 0) return;
    const { object } = this;
    this.object = 0;
    await this.calls.exclusive(async () => {
      if (!this.calls.stopped) await this.calls.compute(this.closing, object);
    });
    this.#close();
  }

  /** The object for a call. */
  get handle() {
    if (this.object === 0) throw new TrunnionError('it was closed');
    return this.object;
  }

  /** Calls a function of the object that computes; its result, which is negative for a failure. */
  checked(name, ...args) { return this.calls.exclusive(() => this.calls.checked(name, this.handle, ...args)); }
}

// ---- language models ------------------------------------------------------------------------------------------------

/** Lets messages and events of this thread be handled. */
const turn = NODE
  ? () => new Promise((done) => setImmediate(done))
  : () => new Promise((done) => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => { channel.port1.close(); done(); };
    channel.port2.postMessage(0);
  });

const toOption = (name) => name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);

export class LanguageModel extends Handle {
  closing = 'web_chat_close';
  #busy = false;

  get facts() { return this.calls.described('web_chat_facts', this.handle); }

  async generate(request, onText = () => {}) {
    if (this.#busy) throw new TrunnionError('the model is computing another answer; wait for it');
    this.#busy = true;
    try {
      return await this.#generate(request, onText);
    } finally {
      this.#busy = false;
    }
  }

  async #generate({ messages, prompt, maxTokens = -1, greedy = false, seed = 0, stop = [], signal, ...sampling }, onText) {
    const options = Object.fromEntries(Object.entries(sampling).map(([name, value]) => [toOption(name), value]));
    const text = JSON.stringify({ messages, prompt, maxTokens, greedy, seed, stop, sampling: options });
    await this.calls.withText(text, (address) => this.checked('web_chat_begin', address));
    let answer = '';
    const show = () => {
      const part = this.calls.text(this.calls.call('web_chat_text', this.handle));
      answer += part;
      if (part) onText(part);
    };
    const start = performance.now();
    while (!signal?.aborted && await this.checked('web_chat_prompt') > 0) await turn();
    const begun = performance.now();
    if (!signal?.aborted) {
      while (await this.checked('web_chat_next') > 0) {
        show();
        await turn();
        if (signal?.aborted) break;
      }
      show();
    }
    const result = this.calls.described('web_chat_result', this.handle);
    const seconds = (performance.now() - begun) / 1000;
    return { text: answer, ...result, promptSeconds: (begun - start) / 1000, tokenSeconds: seconds };
  }
}

// ---- ONNX models ----------------------------------------------------------------------------------------------------

// The arrays of tn_dtype, in its order; f16 and bf16 are given as their bits.
const ARRAYS = [Float32Array, Float64Array, Int32Array, BigInt64Array, Uint32Array, BigUint64Array, Uint8Array, Uint16Array,
  Uint16Array, Int8Array, Uint8Array, Int16Array, Uint16Array];

export class OnnxModel extends Handle {
  closing = 'web_onnx_close';
  #ends;

  #describe() { return (this.#ends ??= this.calls.described('web_onnx_describe', this.handle)); }
  get inputs() { return this.#describe().inputs; }
  get outputs() { return this.#describe().outputs; }

  async #give(i, input, { data, shape }) {
    const array = ARRAYS[input.dtype];
    if (!array) throw new TrunnionError(`input '${input.name}' has the type ${input.type}, which is not supported here`);
    if (!(data instanceof array)) throw new TrunnionError(`input '${input.name}' must be a ${array.name}`);
    const count = shape.reduce((product, extent) => product * extent, 1);
    if (count !== data.length)
      throw new TrunnionError(`input '${input.name}': ${data.length} numbers do not make the shape [${shape}]`);
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    const extents = new Uint8Array(Int32Array.from(shape).buffer);
    await this.calls.with(bytes, (at) => this.calls.with(extents, (shapeAt) =>
      this.calls.checked('web_onnx_input', this.handle, i, input.dtype, at, shapeAt, shape.length)));
  }

  async #take(i) {
    const { dtype, shape } = await this.calls.computedDescription('web_onnx_output', this.handle, i);
    const array = ARRAYS[dtype], count = shape.reduce((product, extent) => product * extent, 1);
    const address = this.calls.call('web_onnx_data', this.handle) >>> 0;
    const bytes = this.calls.exports.memory.buffer.slice(address, address + count * array.BYTES_PER_ELEMENT);
    return { data: new array(bytes), shape };
  }

  async run(inputs) {
    for (const name of Object.keys(inputs))
      if (!this.inputs.some((input) => input.name === name))
        throw new TrunnionError(`no input '${name}'; the model has ${this.inputs.map((input) => `'${input.name}'`).join(', ')}`);
    return this.calls.exclusive(async () => {
      for (const [i, input] of this.inputs.entries()) if (inputs[input.name]) await this.#give(i, input, inputs[input.name]);
      await this.calls.checked('web_onnx_run', this.handle);
      const outputs = {};
      for (const [i, { name }] of this.outputs.entries()) outputs[name] = await this.#take(i);
      return outputs;
    });
  }
}

// ---- training -------------------------------------------------------------------------------------------------------

export class DigitsTraining extends Handle {
  closing = 'web_digits_close';
  steps = 0;

  async step() {
    const loss = await this.checked('web_digits_step');
    this.steps++;
    return loss;
  }

  async accuracy() { return this.checked('web_digits_accuracy'); }

  async predict(pixels) {
    if (pixels.length !== 64) throw new TrunnionError(`a digit has 64 pixels, not ${pixels.length}`);
    const bytes = new Uint8Array(Float32Array.from(pixels).buffer);
    return this.calls.with(bytes, (at) => this.calls.with(new Uint8Array(40), async (out) => {
      await this.checked('web_digits_predict', at, out);
      return new Float32Array(this.calls.exports.memory.buffer.slice(out, out + 40)); // 10 of 4 bytes
    }));
  }
}
