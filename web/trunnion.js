// trunnion.js — Trunnion for browsers and Node: language models, ONNX models, and training of the digits, in WebAssembly.
//
//   import { load } from 'trunnion';
//   const trunnion = await load();
//   const model = await trunnion.openModel(file);
//   const answer = await model.generate({ messages: [{ role: 'user', content: 'Hello' }] }, (text) => show(text));
//
// Computing blocks the thread that calls: use a Worker in a browser. index.d.ts describes every function.
import { Exit, Wasi, blobFile, bytesFile } from './wasi.js';

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
export async function load({ relaxed = hasFusedSimd(), onLine } = {}) {
  const name = relaxed ? './trunnion-relaxed.wasm.gz' : './trunnion.wasm.gz';
  const module = await compile(new URL(name, import.meta.url));
  const wasi = new Wasi(onLine);
  const instance = await WebAssembly.instantiate(module, wasi.imports(module));
  wasi.memory = instance.exports.memory;
  instance.exports._initialize();
  return new Trunnion(instance.exports, wasi, relaxed);
}

/** The calling side of the module: texts and arrays in its memory, and errors. */
class Calls {
  constructor(exports, wasi) {
    this.exports = exports;
    this.wasi = wasi;
    this.stopped = null; // why no further call is possible
  }

  /** Calls an exported function. A trap (memory ran out, a defect) ends the module. */
  call(name, ...args) {
    if (this.stopped) throw new TrunnionError(`the module stopped earlier: ${this.stopped}; load() it again`);
    try {
      return this.exports[name](...args);
    } catch (error) {
      if (!(error instanceof WebAssembly.RuntimeError) && !(error instanceof Exit) && !(error instanceof RangeError)) throw error;
      this.stopped = error.message;
      throw new TrunnionError(`the module stopped: ${error.message}; load() it again`, { cause: error });
    }
  }

  /** The result of a call, unless `failed` says that it failed: then the library's error is thrown. */
  check(result, failed) {
    if (!failed) return result;
    throw new TrunnionError(this.text(this.call('web_error')) || 'the call failed without an error text');
  }

  checked(name, ...args) {
    const result = this.call(name, ...args);
    return this.check(result, result < 0);
  }

  described(name, ...args) {
    const address = this.call(name, ...args);
    return JSON.parse(this.text(this.check(address, address === 0)));
  }

  text(address) {
    const bytes = new Uint8Array(this.exports.memory.buffer);
    const from = address >>> 0; // addresses from 2 GiB on come as negative numbers
    return new TextDecoder().decode(bytes.slice(from, bytes.indexOf(0, from)));
  }

  /** Calls use(address) with a copy of the bytes in the module's memory. */
  with(bytes, use) {
    const address = this.call('web_alloc', bytes.length) >>> 0;
    if (address === 0) throw new TrunnionError(`no memory for ${bytes.length} bytes`);
    try {
      new Uint8Array(this.exports.memory.buffer, address, bytes.length).set(bytes);
      return use(address);
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
  open(name, path, file, ...args) {
    this.wasi.files.set(`/${path}`, file);
    try {
      const object = this.withText(path, (address) => this.call(name, address, ...args));
      return this.check(object, object === 0);
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

  constructor(exports, wasi, relaxed) {
    this.#calls = new Calls(exports, wasi);
    this.version = this.#calls.text(exports.web_version());
    this.relaxed = relaxed;
  }

  /** Bytes that the module has taken from the system. */
  get memoryBytes() { return this.#calls.exports.memory.buffer.byteLength; }

  async #open(type, name, source, ...args) {
    const { file, name: given } = await toFile(source);
    const path = this.#calls.freePath(given);
    const object = this.#calls.open(name, path, file, ...args);
    return new type(this.#calls, object, () => this.#calls.closeFile(path, file));
  }

  openModel(source, { context = 0 } = {}) { return this.#open(LanguageModel, 'web_chat_open', source, context); }

  openOnnx(source) { return this.#open(OnnxModel, 'web_onnx_open', source); }

  async trainDigits(table, { model = 'mlp', seed = 0 } = {}) {
    const { file, name } = await toFile(table);
    const path = this.#calls.freePath(name);
    const object = this.#calls.withText(model, (kind) => this.#calls.open('web_digits_open', path, file, kind, seed));
    return new DigitsTraining(this.#calls, object, () => this.#calls.closeFile(path, file));
  }
}

/** An object of the module. */
class Handle {
  #close;

  constructor(calls, object, close) {
    this.calls = calls;
    this.object = object;
    this.#close = close;
  }

  /** Frees it; nothing else may be called afterwards. */
  close() {
    if (this.object === 0) return;
    if (!this.calls.stopped) this.calls.call(this.closing, this.object);
    this.object = 0;
    this.#close();
  }

  /** The object for a call. */
  get handle() {
    if (this.object === 0) throw new TrunnionError('it was closed');
    return this.object;
  }
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
    this.calls.withText(text, (address) => this.calls.checked('web_chat_begin', this.handle, address));
    let answer = '';
    const show = () => {
      const part = this.calls.text(this.calls.call('web_chat_text', this.handle));
      answer += part;
      if (part) onText(part);
    };
    const start = performance.now();
    while (!signal?.aborted && this.calls.checked('web_chat_prompt', this.handle) > 0) await turn();
    const begun = performance.now();
    if (!signal?.aborted) {
      while (this.calls.checked('web_chat_next', this.handle) > 0) {
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

  #give(i, input, { data, shape }) {
    const array = ARRAYS[input.dtype];
    if (!array) throw new TrunnionError(`input '${input.name}' has the type ${input.type}, which is not supported here`);
    if (!(data instanceof array)) throw new TrunnionError(`input '${input.name}' must be a ${array.name}`);
    const count = shape.reduce((product, extent) => product * extent, 1);
    if (count !== data.length)
      throw new TrunnionError(`input '${input.name}': ${data.length} numbers do not make the shape [${shape}]`);
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    const extents = new Uint8Array(Int32Array.from(shape).buffer);
    this.calls.with(bytes, (at) => this.calls.with(extents, (shapeAt) =>
      this.calls.checked('web_onnx_input', this.handle, i, input.dtype, at, shapeAt, shape.length)));
  }

  #take(i) {
    const { dtype, shape } = this.calls.described('web_onnx_output', this.handle, i);
    const array = ARRAYS[dtype], count = shape.reduce((product, extent) => product * extent, 1);
    const address = this.calls.call('web_onnx_data', this.handle) >>> 0;
    const bytes = this.calls.exports.memory.buffer.slice(address, address + count * array.BYTES_PER_ELEMENT);
    return { data: new array(bytes), shape };
  }

  run(inputs) {
    for (const name of Object.keys(inputs))
      if (!this.inputs.some((input) => input.name === name))
        throw new TrunnionError(`no input '${name}'; the model has ${this.inputs.map((input) => `'${input.name}'`).join(', ')}`);
    this.inputs.forEach((input, i) => { if (inputs[input.name]) this.#give(i, input, inputs[input.name]); });
    this.calls.checked('web_onnx_run', this.handle);
    return Object.fromEntries(this.outputs.map(({ name }, i) => [name, this.#take(i)]));
  }
}

// ---- training -------------------------------------------------------------------------------------------------------

export class DigitsTraining extends Handle {
  closing = 'web_digits_close';
  steps = 0;

  step() {
    const loss = this.calls.checked('web_digits_step', this.handle);
    this.steps++;
    return loss;
  }

  accuracy() { return this.calls.checked('web_digits_accuracy', this.handle); }

  predict(pixels) {
    if (pixels.length !== 64) throw new TrunnionError(`a digit has 64 pixels, not ${pixels.length}`);
    const bytes = new Uint8Array(Float32Array.from(pixels).buffer);
    return this.calls.with(bytes, (at) => this.calls.with(new Uint8Array(40), (out) => {
      this.calls.checked('web_digits_predict', this.handle, at, out);
      return new Float32Array(this.calls.exports.memory.buffer.slice(out, out + 40)); // 10 of 4 bytes
    }));
  }
}
