// index.d.ts — the functions of the package `trunnion`.
//
// Failures are thrown as TrunnionError with the library's message. Computing on the device cpu blocks the thread that
// calls: use a Worker in a browser. Calls of one module are computed one after the other; several modules may be loaded.

/** A failure: of the library, or of the arguments. */
export class TrunnionError extends Error {}

/** A file: in a Worker a Blob or File is read piece by piece; a string or URL is a path of Node. */
export type Source = Blob | ArrayBuffer | Uint8Array | string | URL;

export interface LoadOptions {
  /** Load the module with relaxed SIMD, which is faster. Default: hasFusedSimd(). */
  relaxed?: boolean;
  /** Look for WebGPU, which needs a browser with JavaScript Promise Integration. Default true. */
  webgpu?: boolean;
  /** Receives lines that the library logs. Default: none are shown. */
  onLine?: (line: string) => void;
}

/** What computes: WebAssembly on this thread, or the GPU by WebGPU. Products are summed in other orders there. */
export type Device = 'cpu' | 'webgpu';

/** Whether this engine has relaxed SIMD with a multiply-add that rounds once, so that results have the same bits. */
export function hasFusedSimd(): boolean;

/** Loads the module, which lies beside trunnion.js. */
export function load(options?: LoadOptions): Promise<Trunnion>;

export class Trunnion {
  /** Version of the library. */
  readonly version: string;
  readonly relaxed: boolean;
  /** Bytes that the module has taken from the system; at most 4 GiB. */
  readonly memoryBytes: number;
  /** Devices that can be used here. */
  readonly devices: Device[];
  /** Why webgpu is not among them. */
  readonly whyNoWebGpu: string | null;

  /** Compares every operation on a device with its definition, forward and backward. only: names of operations; sample: one
   * case in so many. It takes minutes without `sample`. */
  certify(options?: { device?: Device; only?: string[]; sample?: number }): Promise<Certified>;

  /** Opens a language model from a GGUF file. context: tokens of prompt and answers together; 0: the model's, at most 4096.
   * device: default cpu. */
  openModel(source: Source, options?: { context?: number; device?: Device }): Promise<LanguageModel>;

  /** Opens an ONNX model, with its weights inside the file. */
  openOnnx(source: Source, options?: { device?: Device }): Promise<OnnxModel>;

  /** Begins to train a network on the digits. table: digits.csv of this package. */
  trainDigits(table: Source, options?: { model?: 'mlp' | 'cnn'; seed?: number; device?: Device }): Promise<DigitsTraining>;
}

export interface Certified {
  passed: number;
  failed: number;
  /** Cases that the device does not support. */
  skipped: number;
  /** Operations with failures or skipped cases, and why the first of these is one. */
  ops: { name: string; failed: number; skipped: number; why: string }[];
}

export interface Message {
  role: 'system' | 'user' | 'assistant' | (string & {});
  content: string;
}

/** Give messages, for the model's chat template, or a prompt. Options of sampling are those of `trunnion generate`. */
export interface GenerateRequest {
  messages?: Message[];
  prompt?: string;
  /** Default -1: until the text ends or the context is full. */
  maxTokens?: number;
  /** Always take the most probable token. Default false. */
  greedy?: boolean;
  /** Of the draws. Default 0. */
  seed?: number;
  /** The text ends before any of these; at most 16. */
  stop?: string[];
  /** Ends the text when it is aborted; the result has what was written. */
  signal?: AbortSignal;
  /** Default 0.8. */
  temperature?: number;
  /** Default 40. */
  topK?: number;
  /** Default 0.95. */
  topP?: number;
  /** Default 0.05. */
  minP?: number;
  repeatPenalty?: number;
  repeatWindow?: number;
  frequencyPenalty?: number;
  presencePenalty?: number;
  dryMultiplier?: number;
  dryBase?: number;
  dryAllowedLength?: number;
  dryWindow?: number;
  mirostatTau?: number;
  mirostatEta?: number;
}

export interface GenerateResult {
  text: string;
  /** Tokens of the answer. */
  ids: number[];
  promptTokens: number;
  /** Without those of the beginning that the last answer left behind. */
  promptTokensComputed: number;
  stopped: 'end' | 'length' | 'stop' | 'cancelled';
  promptSeconds: number;
  tokenSeconds: number;
}

export interface ModelFacts {
  architecture: string;
  name: string;
  quantization: string;
  parameters: number;
  layers: number;
  vocabulary: number;
  context: number;
  weightsBytes: number;
  chatTemplate: boolean;
}

export class LanguageModel {
  readonly device: Device;
  readonly facts: ModelFacts;
  /** Writes an answer; onText receives its text piece by piece. One answer at a time. */
  generate(request: GenerateRequest, onText?: (text: string) => void): Promise<GenerateResult>;
  close(): Promise<void>;
}

export type Numbers = Float32Array | Float64Array | Int8Array | Int16Array | Int32Array | BigInt64Array | Uint8Array
  | Uint16Array | Uint32Array | BigUint64Array;

/** f16 and bf16 are given as their bits, booleans as bytes. */
export interface Tensor {
  data: Numbers;
  shape: number[];
}

export interface OnnxEnd {
  name: string;
  /** "FLOAT", "INT64" … */
  type: string;
  /** Number of the element type, as in trunnion/status.h. */
  dtype: number;
  /** -1: any extent. */
  shape: number[];
}

export class OnnxModel {
  readonly device: Device;
  readonly inputs: OnnxEnd[];
  readonly outputs: OnnxEnd[];
  /** Computes the outputs from a tensor for each input. */
  run(inputs: Record<string, Tensor>): Promise<Record<string, Tensor>>;
  close(): Promise<void>;
}

/** The training of `trunnion train digits`, with the same losses for the same seed. */
export class DigitsTraining {
  readonly device: Device;
  /** Steps made. */
  readonly steps: number;
  /** Computes one batch of 64 and updates the weights; its loss. */
  step(): Promise<number>;
  /** The part of the test's digits that the network recognizes, 0 to 1. */
  accuracy(): Promise<number>;
  /** The probability of each digit for a picture of 8 by 8 numbers from 0 to 1, row by row. */
  predict(pixels: ArrayLike<number>): Promise<Float32Array>;
  close(): Promise<void>;
}
