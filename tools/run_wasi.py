"""run_wasi.py PROGRAM.wasm [ARGUMENT…] — runs a WebAssembly program in wasmtime with this machine's files and environment."""

import os
import sys

import wasmtime

program, *arguments = sys.argv[1:]
config = wasmtime.Config()
config.cache = True  # of the machine code
engine = wasmtime.Engine(config)
linker = wasmtime.Linker(engine)
linker.define_wasi()
system = wasmtime.WasiConfig()
system.argv = [os.path.basename(program), *arguments]
system.env = list(os.environ.items())
system.inherit_stdin(), system.inherit_stdout(), system.inherit_stderr()
system.preopen_dir("/", "/")
store = wasmtime.Store(engine)
store.set_wasi(system)
try:
    linker.instantiate(store, wasmtime.Module.from_file(engine, program)).exports(store)["_start"](store)
except wasmtime.ExitTrap as end:
    sys.exit(end.code)
