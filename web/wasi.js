// wasi.js — the part of WASI (snapshot preview 1) that the module imports: files that are only read, the clock, random
// numbers, and the two output streams.
//
// A file is an object {size, read(offset, target)}: read fills the start of `target`, a Uint8Array, and returns how many
// bytes it wrote. So a model is read in place, from memory, a Blob or a file of Node, and is never copied twice.

const SUCCESS = 0, BADF = 8, INVAL = 28, IO = 29, NOENT = 44, NOTSUP = 58, ROFS = 69;
const CHARACTERS = 2, DIRECTORY = 3, REGULAR = 4; // file types
const ROOT = 3; // the descriptor of the folder that files are opened in
const MOST_AT_ONCE = 8 << 20; // bytes of one read; callers ask again for the rest

/** A file of bytes in memory. */
export function bytesFile(bytes) {
  return {
    size: bytes.length,
    read(offset, target) {
      const part = bytes.subarray(offset, offset + target.length);
      target.set(part);
      return part.length;
    },
  };
}

/** A file of a Blob or File, read in a Worker without loading all of it. */
export function blobFile(blob) {
  const reader = new FileReaderSync();
  return {
    size: blob.size,
    read(offset, target) {
      const part = new Uint8Array(reader.readAsArrayBuffer(blob.slice(offset, offset + target.length)));
      target.set(part);
      return part.length;
    },
  };
}

/** The module ended itself: `code` is its exit status. */
export class Exit extends Error {
  constructor(code) {
    super(`the module ended with exit status ${code}`);
    this.code = code;
  }
}

export class Wasi {
  constructor(onLine = () => {}) {
    this.files = new Map(); // path → file
    this.open = new Map(); // descriptor → {file, position}
    this.onLine = onLine;
    this.partial = '';
    this.decoder = new TextDecoder();
    this.memory = null; // set after instantiation
  }

  view() { return new DataView(this.memory.buffer); }
  bytes(address, length) { return new Uint8Array(this.memory.buffer, address, length); }
  path(address, length) { return '/' + this.decoder.decode(this.bytes(address, length).slice()).replace(/^(\.?\/)+/, ''); }

  /** The buffers of a list of {address, length}. */
  * buffers(list, count) {
    for (let i = 0; i < count; i++) {
      const view = this.view();
      yield this.bytes(view.getUint32(list + 8 * i, true), view.getUint32(list + 8 * i + 4, true));
    }
  }

  /** Reads into the buffers, up to the end of the file; writes the number of bytes to `done`. */
  readAt(file, position, list, count, done) {
    let total = 0;
    for (const buffer of this.buffers(list, count)) {
      const target = buffer.subarray(0, Math.min(buffer.length, MOST_AT_ONCE));
      let got;
      try {
        got = position + total < file.size ? file.read(position + total, target) : 0;
      } catch (error) {
        this.onLine(`reading a file failed: ${error.message}`);
        return IO;
      }
      total += got;
      if (got < buffer.length) break;
    }
    this.view().setUint32(done, total, true);
    return SUCCESS;
  }

  putStat(address, type, size) {
    const view = this.view();
    this.bytes(address, 64).fill(0);
    view.setUint8(address + 16, type);
    view.setBigUint64(address + 24, 1n, true);
    view.setBigUint64(address + 32, BigInt(size), true);
    return SUCCESS;
  }

  typeOf(fd) {
    if (fd < ROOT) return CHARACTERS;
    if (fd === ROOT) return DIRECTORY;
    return this.open.has(fd) ? REGULAR : -1;
  }

  write(data) {
    const lines = (this.partial + this.decoder.decode(data.slice())).split('\n');
    this.partial = lines.pop();
    lines.forEach(this.onLine);
  }

  functions() {
    return {
      environ_sizes_get: (count, size) => {
        this.view().setUint32(count, 0, true);
        this.view().setUint32(size, 0, true);
        return SUCCESS;
      },
      environ_get: () => SUCCESS,
      clock_time_get: (clock, precision, time) => {
        const milliseconds = clock === 0 ? Date.now() : performance.now();
        this.view().setBigUint64(time, BigInt(Math.round(milliseconds * 1e6)), true);
        return SUCCESS;
      },
      random_get: (address, length) => {
        for (let at = 0; at < length; at += 65536) // the most that getRandomValues gives at once
          crypto.getRandomValues(this.bytes(address + at, Math.min(65536, length - at)));
        return SUCCESS;
      },
      sched_yield: () => SUCCESS,
      proc_exit: (code) => { throw new Exit(code); },

      fd_prestat_get: (fd, out) => {
        if (fd !== ROOT) return BADF;
        this.view().setUint32(out, 0, true);
        this.view().setUint32(out + 4, 1, true);
        return SUCCESS;
      },
      fd_prestat_dir_name: (fd, address, length) => {
        if (fd !== ROOT || length < 1) return INVAL;
        this.bytes(address, 1)[0] = 47; // "/"
        return SUCCESS;
      },
      fd_fdstat_get: (fd, out) => {
        const type = this.typeOf(fd);
        if (type < 0) return BADF;
        this.bytes(out, 24).fill(0);
        this.view().setUint8(out, type);
        this.view().setBigUint64(out + 8, 0xffffffffn, true); // rights: the folder refuses what it cannot do
        this.view().setBigUint64(out + 16, 0xffffffffn, true);
        return SUCCESS;
      },
      fd_fdstat_set_flags: () => SUCCESS,
      fd_filestat_get: (fd, out) => {
        const type = this.typeOf(fd);
        return type < 0 ? BADF : this.putStat(out, type, this.open.get(fd)?.file.size ?? 0);
      },
      fd_close: (fd) => (this.open.delete(fd) ? SUCCESS : BADF),
      fd_read: (fd, list, count, done) => {
        const o = this.open.get(fd);
        if (!o) return BADF;
        const status = this.readAt(o.file, o.position, list, count, done);
        if (status === SUCCESS) o.position += this.view().getUint32(done, true);
        return status;
      },
      fd_pread: (fd, list, count, offset, done) => {
        const o = this.open.get(fd);
        return o ? this.readAt(o.file, Number(offset), list, count, done) : BADF;
      },
      fd_seek: (fd, offset, whence, out) => {
        const o = this.open.get(fd);
        if (!o) return BADF;
        const position = [0, o.position, o.file.size][whence] + Number(offset);
        if (!(position >= 0)) return INVAL;
        o.position = position;
        this.view().setBigUint64(out, BigInt(position), true);
        return SUCCESS;
      },
      fd_write: (fd, list, count, done) => {
        if (fd !== 1 && fd !== 2) return BADF;
        let total = 0;
        for (const buffer of this.buffers(list, count)) {
          this.write(buffer);
          total += buffer.length;
        }
        this.view().setUint32(done, total, true);
        return SUCCESS;
      },
      path_open: (folder, links, address, length, create, rights, inherited, flags, out) => {
        const file = this.files.get(this.path(address, length));
        if (create) return ROFS;
        if (!file) return NOENT;
        let fd = ROOT + 1;
        while (this.open.has(fd)) fd++;
        this.open.set(fd, { file, position: 0 });
        this.view().setUint32(out, fd, true);
        return SUCCESS;
      },
      path_filestat_get: (folder, links, address, length, out) => {
        const path = this.path(address, length), file = this.files.get(path);
        if (path === '/') return this.putStat(out, DIRECTORY, 0);
        return file ? this.putStat(out, REGULAR, file.size) : NOENT;
      },
    };
  }

  /** The imports of a module. What is not above would write: it fails. */
  imports(module) {
    const all = this.functions();
    const found = {};
    for (const { module: from, name } of WebAssembly.Module.imports(module)) {
      if (from !== 'wasi_snapshot_preview1') continue;
      const call = all[name] ?? (() => (name.startsWith('path_') ? ROFS : NOTSUP));
      // Addresses from 2 GiB on come as negative numbers.
      found[name] = (...given) => call(...given.map((value) => (typeof value === 'number' ? value >>> 0 : value)));
    }
    return { wasi_snapshot_preview1: found };
  }
}
