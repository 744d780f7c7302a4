// webgpu.js — WebGPU's C interface for the module, by the browser's WebGPU.
//
// The module calls the functions of src/drivers/webgpu.h. Handles are numbers of `objects`, structures lie in the module's
// memory where src/drivers/webgpu_browser.c says. What a browser answers later is queued; wgpuInstanceProcessEvents
// suspends the module until something was (JavaScript Promise Integration), and calls the module's callbacks.

const WANTED = { powerPreference: 'high-performance' }; // of adapters
const VERSION = 24 << 24; // of the interface, as wgpu-native counts
const SUCCESS = 1, FAILED = 4; // of calls and callbacks
const NO_ERROR = 1, VALIDATION = 2, OUT_OF_MEMORY = 3, INTERNAL = 4;
const LOST_UNKNOWN = 1, LOST_DESTROYED = 2;
const OVER_WEBGPU = 2, CPU = 3, OTHER = 4; // backend; types of adapters
const FILTERS = { [VALIDATION - 1]: 'validation', [OUT_OF_MEMORY - 1]: 'out-of-memory' };
const BINDINGS = { 2: 'uniform', 3: 'storage', 4: 'read-only-storage' };
const LAYOUT_ENTRY = 104, GROUP_ENTRY = 40, CALLBACK_A = 12, LOST = 36, ERROR = 56; // sizes and places

// The limits that the driver reads, by their place in wgpu_limits; those of 64 bits are marked.
const LIMITS = [
  ['maxBindGroups', 20], ['maxBindingsPerBindGroup', 28], ['maxDynamicUniformBuffersPerPipelineLayout', 32],
  ['maxStorageBuffersPerShaderStage', 48], ['maxUniformBuffersPerShaderStage', 56],
  ['maxUniformBufferBindingSize', 64, true], ['maxStorageBufferBindingSize', 72, true],
  ['minUniformBufferOffsetAlignment', 80], ['minStorageBufferOffsetAlignment', 84], ['maxBufferSize', 96, true],
  ['maxComputeWorkgroupStorageSize', 124], ['maxComputeInvocationsPerWorkgroup', 128], ['maxComputeWorkgroupSizeX', 132],
  ['maxComputeWorkgroupSizeY', 136], ['maxComputeWorkgroupSizeZ', 140], ['maxComputeWorkgroupsPerDimension', 144],
];

/** The browser's adapter, and why there is none. */
export async function findAdapter() {
  const gpu = globalThis.navigator?.gpu;
  if (!gpu) return { why: 'this browser has no WebGPU, or offers it to secure pages only' };
  if (typeof WebAssembly.Suspending !== 'function')
    return { why: "this browser lacks WebAssembly's JavaScript Promise Integration" };
  const adapter = await gpu.requestAdapter(WANTED).catch(() => null);
  return adapter ? { adapter } : { why: 'WebGPU found no adapter; see whether the browser may use the GPU' };
}

const errorType = (error) => {
  if (!error) return NO_ERROR;
  if (error instanceof GPUOutOfMemoryError) return OUT_OF_MEMORY;
  return error instanceof GPUValidationError ? VALIDATION : INTERNAL;
};

export class WebGpu {
  #objects = new Map();
  #last = 0;
  #events = []; // callbacks whose answers have come
  #expected = 0; // answers that have not
  #wake = () => {};
  #released = []; // buffers that commands which are not submitted may still use

  constructor(adapter) {
    this.adapter = adapter;
    this.exports = null; // set after instantiation
  }

  // ---- the module's memory and handles

  #view() { return new DataView(this.exports.memory.buffer); }
  #u32(address) { return this.#view().getUint32(address, true); }
  #u64(address) { return Number(this.#view().getBigUint64(address, true)); }

  #text(address) {
    const bytes = new Uint8Array(this.exports.memory.buffer), from = this.#u32(address), length = this.#u32(address + 4);
    return new TextDecoder().decode(bytes.slice(from, length === 0xffffffff ? bytes.indexOf(0, from) : from + length));
  }

  /** A structure {data, length} with the text, which the caller frees; `texts` of them in one block. */
  #putTexts(...texts) {
    const encoded = texts.map((text) => new TextEncoder().encode(text ?? ''));
    const address = this.exports.web_alloc(8 * texts.length + encoded.reduce((sum, bytes) => sum + bytes.length, 0)) >>> 0;
    let at = address + 8 * texts.length;
    if (address === 0) throw new RangeError('no memory for a text of WebGPU');
    encoded.forEach((bytes, i) => {
      this.#view().setUint32(address + 8 * i, at, true);
      this.#view().setUint32(address + 8 * i + 4, bytes.length, true);
      new Uint8Array(this.exports.memory.buffer, at, bytes.length).set(bytes);
      at += bytes.length;
    });
    return address;
  }

  #add(object) {
    this.#objects.set(++this.#last, object);
    return this.#last;
  }

  #get(handle) { return this.#objects.get(handle); }

  // ---- callbacks

  /** Calls a function of the module whose parameters are `before`, a text, and the callback's two pointers. */
  #tell(call, pointers, message, ...before) {
    const text = this.#putTexts(message), [a, b] = pointers;
    this.exports.__indirect_function_table.get(call)(...before, text, a, b);
    this.exports.web_free(text);
  }

  #pointers(address) { return [this.#u32(address), this.#u32(address + 4)]; }

  /** Queues the callback for the promise's end: its parameters before the text come from `values`. */
  #later(callback, promise, values, failure) {
    const call = this.#u32(callback + 8), pointers = this.#pointers(callback + CALLBACK_A);
    const queue = (message, ...before) => {
      this.#expected--;
      this.#events.push(() => this.#tell(call, pointers, message, ...before));
      this.#wake();
    };
    this.#expected++;
    promise.then((value) => queue(value?.message ?? '', SUCCESS, ...values(value)),
      (error) => queue(error.message, FAILED, ...failure));
    return 0n;
  }

  async #processEvents() {
    while (this.#events.length === 0 && this.#expected > 0) await new Promise((wake) => { this.#wake = wake; });
    for (const event of this.#events.splice(0)) event();
  }

  // ---- devices

  #describe(info) {
    const { vendor, architecture, device, description, isFallbackAdapter } = this.adapter.info;
    const texts = this.#putTexts(vendor, architecture, device, description || `${vendor} ${architecture}`.trim());
    new Uint8Array(this.exports.memory.buffer).copyWithin(info + 4, texts, texts + 32);
    this.#view().setUint32(info + 36, OVER_WEBGPU, true);
    this.#view().setUint32(info + 40, isFallbackAdapter ? CPU : OTHER, true);
    this.#view().setUint32(info, texts, true); // for AdapterInfoFreeMembers
    return SUCCESS;
  }

  #putLimits(address) {
    const view = this.#view();
    for (const [name, at, wide] of LIMITS) {
      const value = this.adapter.limits[name];
      if (wide) view.setBigUint64(address + at, BigInt(value), true);
      else view.setUint32(address + at, value, true);
    }
    return SUCCESS;
  }

  /** A device with all that the adapter offers. An adapter gives one device only, so a new one is asked for. */
  async #newDevice(lost, error) {
    const adapter = await navigator.gpu.requestAdapter(WANTED);
    if (!adapter) throw new Error('WebGPU found no adapter any more');
    const requiredLimits = Object.fromEntries(LIMITS.map(([name]) => [name, adapter.limits[name]]));
    const device = await adapter.requestDevice({ requiredLimits });
    device.addEventListener('uncapturederror', (event) =>
      this.#tell(error.call, error.pointers, event.error.message, 0, errorType(event.error)));
    device.lost.then(({ reason, message }) => {
      if (device.released) return;
      this.#tell(lost.call, lost.pointers, message, 0, reason === 'destroyed' ? LOST_DESTROYED : LOST_UNKNOWN);
    });
    return device;
  }

  #requestDevice(descriptor, callback) {
    const lost = { call: this.#u32(descriptor + LOST + 8), pointers: this.#pointers(descriptor + LOST + CALLBACK_A) };
    const error = { call: this.#u32(descriptor + ERROR + 4), pointers: this.#pointers(descriptor + ERROR + 8) };
    return this.#later(callback, this.#newDevice(lost, error), (device) => [this.#add(device)], [0]);
  }

  #releaseDevice(handle) {
    const device = this.#get(handle);
    device.released = true;
    device.destroy();
    this.#objects.delete(handle);
  }

  // ---- what a device makes

  #makeLayout(device, descriptor) {
    const count = this.#u32(descriptor + 12), from = this.#u32(descriptor + 16);
    const entries = Array.from({ length: count }, (_, i) => {
      const entry = from + i * LAYOUT_ENTRY;
      return {
        binding: this.#u32(entry + 4),
        visibility: GPUShaderStage.COMPUTE,
        buffer: { type: BINDINGS[this.#u32(entry + 20)], hasDynamicOffset: this.#u32(entry + 24) !== 0 },
      };
    });
    return this.#add(this.#get(device).createBindGroupLayout({ entries }));
  }

  #makeGroup(device, descriptor) {
    const count = this.#u32(descriptor + 16), from = this.#u32(descriptor + 20);
    const entries = Array.from({ length: count }, (_, i) => {
      const entry = from + i * GROUP_ENTRY;
      const resource = { buffer: this.#get(this.#u32(entry + 8)).buffer, offset: this.#u64(entry + 16), size: this.#u64(entry + 24) };
      return { binding: this.#u32(entry + 4), resource };
    });
    return this.#add(this.#get(device).createBindGroup({ layout: this.#get(this.#u32(descriptor + 12)), entries }));
  }

  #makePipeline(device, descriptor) {
    const compute = { module: this.#get(this.#u32(descriptor + 20)), entryPoint: this.#text(descriptor + 24) };
    return this.#add(this.#get(device).createComputePipeline({ layout: this.#get(this.#u32(descriptor + 12)), compute }));
  }

  // ---- buffers

  /** Copies what is mapped into the module's memory; the copy stays until the buffer goes, for the next time. */
  #mapped(handle, at, size) {
    const object = this.#get(handle), bytes = new Uint8Array(object.buffer.getMappedRange(at, size));
    if (object.room < size) {
      this.exports.web_free(object.copy);
      object.copy = this.exports.web_alloc(size) >>> 0;
      object.room = object.copy ? size : 0;
    }
    if (object.copy) new Uint8Array(this.exports.memory.buffer, object.copy, size).set(bytes);
    return object.copy;
  }

  #releaseBuffer(handle) {
    const { buffer, copy } = this.#get(handle);
    this.exports.web_free(copy);
    this.#objects.delete(handle);
    this.#released.push(buffer);
  }

  #submit(queue, count, commands) {
    this.#get(queue).submit(Array.from({ length: count }, (_, i) => this.#get(this.#u32(commands + 4 * i))));
    for (const buffer of this.#released.splice(0)) buffer.destroy(); // work that was submitted is still computed
  }

  // ---- the functions

  #functions() {
    const release = (handle) => { this.#objects.delete(handle); };
    const releases = ['Queue', 'ShaderModule', 'BindGroupLayout', 'PipelineLayout', 'ComputePipeline', 'BindGroup', 'CommandEncoder',
      'CommandBuffer', 'ComputePassEncoder', 'Adapter', 'Instance'];
    return {
      ...Object.fromEntries(releases.map((type) => [`${type}Release`, release])),
      GetVersion: () => VERSION,
      CreateInstance: () => this.#add({}),
      InstanceEnumerateAdapters: (instance, options, adapters) => {
        if (this.adapter && adapters) this.#view().setUint32(adapters, this.#add({}), true);
        return this.adapter ? 1 : 0;
      },
      AdapterGetInfo: (adapter, info) => this.#describe(info),
      AdapterInfoFreeMembers: (info) => this.exports.web_free(this.#u32(info)),
      AdapterGetLimits: (adapter, limits) => this.#putLimits(limits),
      AdapterRequestDevice: (adapter, descriptor, callback) => this.#requestDevice(descriptor, callback),
      DeviceGetQueue: (device) => this.#add(this.#get(device).queue),
      DeviceRelease: (device) => this.#releaseDevice(device),
      DevicePushErrorScope: (device, filter) => this.#get(device).pushErrorScope(FILTERS[filter]),
      DevicePopErrorScope: (device, callback) =>
        this.#later(callback, this.#get(device).popErrorScope(), (error) => [errorType(error)], [NO_ERROR]),
      DeviceCreateBuffer: (device, descriptor) => {
        const buffer = this.#get(device).createBuffer({ usage: this.#u64(descriptor + 16), size: this.#u64(descriptor + 24) });
        return this.#add({ buffer, copy: 0, room: 0 });
      },
      DeviceCreateShaderModule: (device, descriptor) =>
        this.#add(this.#get(device).createShaderModule({ code: this.#text(this.#u32(descriptor) + 8) })),
      DeviceCreateBindGroupLayout: (device, descriptor) => this.#makeLayout(device, descriptor),
      DeviceCreatePipelineLayout: (device, descriptor) => {
        const layouts = this.#u32(descriptor + 16), count = this.#u32(descriptor + 12);
        const bindGroupLayouts = Array.from({ length: count }, (_, i) => this.#get(this.#u32(layouts + 4 * i)));
        return this.#add(this.#get(device).createPipelineLayout({ bindGroupLayouts }));
      },
      DeviceCreateComputePipeline: (device, descriptor) => this.#makePipeline(device, descriptor),
      DeviceCreateBindGroup: (device, descriptor) => this.#makeGroup(device, descriptor),
      DeviceCreateCommandEncoder: (device) => this.#add(this.#get(device).createCommandEncoder()),
      BufferMapAsync: (buffer, mode, at, size, callback) =>
        this.#later(callback, this.#get(buffer).buffer.mapAsync(Number(mode), at, size), () => [], []),
      BufferGetConstMappedRange: (buffer, at, size) => this.#mapped(buffer, at, size),
      BufferUnmap: (buffer) => this.#get(buffer).buffer.unmap(),
      BufferRelease: (buffer) => this.#releaseBuffer(buffer),
      CommandEncoderBeginComputePass: (encoder) => this.#add(this.#get(encoder).beginComputePass()),
      CommandEncoderCopyBufferToBuffer: (encoder, from, fromAt, to, toAt, size) => this.#get(encoder).copyBufferToBuffer(
        this.#get(from).buffer, Number(fromAt), this.#get(to).buffer, Number(toAt), Number(size)),
      CommandEncoderClearBuffer: (encoder, buffer, at, size) =>
        this.#get(encoder).clearBuffer(this.#get(buffer).buffer, Number(at), Number(size)),
      CommandEncoderFinish: (encoder) => this.#add(this.#get(encoder).finish()),
      ComputePassEncoderSetPipeline: (pass, pipeline) => this.#get(pass).setPipeline(this.#get(pipeline)),
      ComputePassEncoderSetBindGroup: (pass, index, group, count, offsets) => this.#get(pass).setBindGroup(
        index, this.#get(group), new Uint32Array(this.exports.memory.buffer, offsets, count), 0, count),
      ComputePassEncoderDispatchWorkgroups: (pass, x, y, z) => this.#get(pass).dispatchWorkgroups(x, y, z),
      ComputePassEncoderEnd: (pass) => this.#get(pass).end(),
      QueueWriteBuffer: (queue, buffer, at, data, size) =>
        this.#get(queue).writeBuffer(this.#get(buffer).buffer, Number(at), this.exports.memory.buffer, data, size),
      QueueSubmit: (queue, count, commands) => this.#submit(queue, count, commands),
    };
  }

  /** The imports of the module. */
  imports() {
    const found = {};
    for (const [name, call] of Object.entries(this.#functions())) // addresses from 2 GiB on come as negative numbers
      found[`wgpu${name}`] = (...given) => call(...given.map((value) => (typeof value === 'number' ? value >>> 0 : value)));
    const wait = () => this.#processEvents();
    found.wgpuInstanceProcessEvents = this.adapter ? new WebAssembly.Suspending(wait) : () => {};
    return { webgpu: found };
  }
}
