"""cross_libraries.py — builds PCRE2, utf8proc, libmicrohttpd and cmocka for the targets of cross.py, from Debian's source packages.

The sources come through apt-get with lists of its own in .deps/cross/apt, so that neither this machine's sources nor its
packages change. Each target gets .deps/cross/libraries/TARGET with include, lib and pkgconfig, for CMake's
PKG_CONFIG_LIBDIR. WASI has neither setjmp nor sockets: no cmocka, so no test programs, and no libmicrohttpd there.
"""

import dataclasses
import pathlib
import platform
import subprocess
import tarfile

MIRROR = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian {} main\n"
OLD_SYSTEM = "bullseye"  # the oldest Debian there; its glibc is 2.31


@dataclasses.dataclass
class Library:
    name: str  # of the archive and of its .pc file
    package: str
    sources: tuple  # patterns
    header: str
    copies: tuple = ()  # files that a configure script would make: (a file of the package, or "": empty; to)
    flags: tuple = ()
    uses: str = ""  # defined for what includes the header
    version: str = "1"
    systems: dict = dataclasses.field(default_factory=dict)  # flags by the last word of a target's name; "": of the others

    def config(self):
        return f"{self.name}.pc" if self.name == "cmocka" else f"lib{self.name}.pc"

    def flags_for(self, target):
        return (*self.flags, *self.systems.get(target.split("-")[-1], self.systems.get("", ())))


PCRE2_TOOLS = {"pcre2_dftables.c", "pcre2_fuzzsupport.c", "pcre2_jit_test.c", "pcre2demo.c", "pcre2grep.c", "pcre2test.c",
               "pcre2posix.c", "pcre2posix_test.c", "pcre2_jit_match.c", "pcre2_jit_misc.c", "pcre2_ucptables.c",
               "pcre2_printint.c"}
# libmicrohttpd without what `trunnion serve` does not use: TLS, authentication, forms.
MICROHTTPD = ("connection", "reason_phrase", "daemon", "internal", "memorypool", "mhd_mono_clock", "mhd_str", "mhd_send",
              "sysfdsetsize", "mhd_itc", "mhd_sockets", "mhd_threads", "mhd_compat", "response", "tsearch")
MICROHTTPD_FLAGS = ("HAVE_CONFIG_H", "_GNU_SOURCE", "_MHD_EXTERN=extern", "_MHD_static_inline=static inline", "_MHD_NORETURN=_Noreturn",
                    "INLINE_FUNC", "SIZEOF_SIZE_T=8", "SIZEOF_UINT64_T=8", "SIZEOF_UNSIGNED_INT=4", "SIZEOF_UNSIGNED_LONG_LONG=8",
                    "HAVE_MESSAGES", "HAVE_INET6", "HAVE_POLL", "HAVE_CALLOC", "HAVE_SNPRINTF", "HAVE_GETSOCKNAME", "MHD_USE_GETSOCKNAME",
                    "HAVE___FUNC__", "HAVE_C_ALIGNOF", "MHD_HAVE___BUILTIN_BSWAP32", "MHD_HAVE___BUILTIN_BSWAP64",
                    *(f"HAVE_{name}_H" for name in ("ERRNO", "FCNTL", "INTTYPES", "LIMITS", "LOCALE", "MATH", "STDBOOL", "STDDEF", "STDINT",
                                                    "STDIO", "STDLIB", "STRING", "STRINGS", "SYS_STAT", "SYS_TYPES", "TIME")))
MICROHTTPD_POSIX = ("MHD_USE_POSIX_THREADS", "SIZEOF_STRUCT_TIMEVAL_TV_SEC=8", "HAVE_GMTIME_R", "HAVE_CLOCK_GETTIME",
                    *(f"HAVE_{name}_H" for name in ("ARPA_INET", "NETDB", "NETINET_IN", "NETINET_TCP", "POLL", "PTHREAD", "SEARCH",
                                                    "SYS_SELECT", "SYS_SOCKET", "SYS_TIME", "SYS_UIO", "UNISTD")))
MICROHTTPD_SYSTEMS = {  # how threads wake each other, and what the system has
    "windows": ("_MHD_ITC_SOCKETPAIR", "MHD_USE_W32_THREADS", "WINDOWS", "SIZEOF_STRUCT_TIMEVAL_TV_SEC=4", "HAVE_WINSOCK2_H",
                "HAVE_WS2TCPIP_H", "HAVE___LSEEKI64", "HAVE_W32_GMTIME_S"),
    "macos": (*MICROHTTPD_POSIX, "_MHD_ITC_PIPE"),
    "": (*MICROHTTPD_POSIX, "_MHD_ITC_EVENTFD", "HAVE_SYS_EVENTFD_H"),
}
LIBRARIES = [
    Library("pcre2-8", "pcre2", ("src/pcre2_*.c",), "src/pcre2.h",
            (("src/config.h.generic", "src/config.h"), ("src/pcre2.h.generic", "src/pcre2.h"),
             ("src/pcre2_chartables.c.dist", "src/pcre2_chartables.c")),
            ("-DHAVE_CONFIG_H", "-DPCRE2_CODE_UNIT_WIDTH=8", "-DSUPPORT_UNICODE", "-DPCRE2_STATIC"), "-DPCRE2_STATIC"),
    Library("utf8proc", "utf8proc", ("utf8proc.c",), "utf8proc.h", (), ("-DUTF8PROC_STATIC",), "-DUTF8PROC_STATIC"),
    Library("cmocka", "cmocka", ("src/cmocka.c",), "include/cmocka.h", (),
            ("-DHAVE_INTTYPES_H", "-DHAVE_SIGNAL_H", "-DHAVE_STRUCT_TIMESPEC", "-DHAVE_GCC_THREAD_LOCAL_STORAGE")),
    Library("microhttpd", "libmicrohttpd", tuple(f"src/microhttpd/{name}.c" for name in MICROHTTPD), "src/include/microhttpd.h",
            (("", "src/include/MHD_config.h"),), tuple(f"-D{flag}" for flag in MICROHTTPD_FLAGS), version="0.9.75",
            systems={system: tuple(f"-D{flag}" for flag in flags) for system, flags in MICROHTTPD_SYSTEMS.items()}),
]
POSIX = ("-D_UINTPTR_T_DEFINED",)  # else cmocka.h defines uintptr_t, which musl's stdint.h then defines again


def run(command, **options):
    return subprocess.run([str(part) for part in command], check=True, **options)


def apt_get(place, kind, release):
    """An apt-get with lists of its own in `place`, of source packages (deb-src) or packages (deb)."""
    for folder in ("lists/partial", "cache/archives/partial", "unpacked"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    (place / "sources.list").write_text(f"{kind} {MIRROR.format(release)}")
    (place / "status").touch()
    options = [f"Dir::State={place}", f"Dir::State::status={place / 'status'}", f"Dir::Cache={place / 'cache'}",
               "Dir::Etc::sourceparts=/nonexistent", f"Dir::Etc::sourcelist={place / 'sources.list'}", "APT::Sandbox::User=root"]
    return ["apt-get", "-q", *(word for option in options for word in ("-o", option))]


def old_glibc(deps):
    """A folder with the C library of an old system, unpacked from its package."""
    place = deps / f"apt-{OLD_SYSTEM}"
    apt = apt_get(place, "deb", OLD_SYSTEM)
    if not list(place.glob("libc6_*.deb")):
        run([*apt, "update"], stdout=subprocess.DEVNULL, cwd=place)
        run([*apt, "download", "libc6"], stdout=subprocess.DEVNULL, cwd=place)
    if not (place / "unpacked" / "lib64").exists():
        run(["dpkg-deb", "--extract", next(place.glob("libc6_*.deb")), place / "unpacked"])
    return place / "unpacked"


def fetch(deps):
    """The sources of all libraries, unpacked: a folder by package."""
    place = deps / "apt"
    apt = apt_get(place, "deb-src", platform.freedesktop_os_release().get("VERSION_CODENAME", "stable"))
    missing = [library.package for library in LIBRARIES if not list(place.glob(f"{library.package}_*.orig.tar.*z"))]
    if missing:
        run([*apt, "update"], stdout=subprocess.DEVNULL, cwd=place)
        run([*apt, "source", "--download-only", *missing], stdout=subprocess.DEVNULL, cwd=place)
    folders = {}
    for library in LIBRARIES:
        archive = next(p for p in place.glob(f"{library.package}_*.orig.tar.*") if p.suffix != ".asc")
        folder = place / "unpacked" / library.package
        if not folder.exists():
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
        folders[library.package] = next(folder.iterdir())
    return folders


def build_one(library, source, place, target, compiler, archiver):
    defines = POSIX if library.name == "cmocka" and "windows" not in target else ()
    for origin, copy in library.copies:
        (source / copy).write_bytes((source / origin).read_bytes() if origin else b"")
    objects = []
    for pattern in library.sources:
        for path in sorted(source.glob(pattern)):
            if path.name in PCRE2_TOOLS:
                continue
            objects.append(place / "objects" / f"{library.name}-{path.stem}.o")
            run([*compiler, "-O2", "-w", *library.flags_for(target), *defines, f"-I{source}", f"-I{source / 'src'}", f"-I{source / 'include'}",
                 f"-I{source / 'src' / 'include'}", "-c", path,
                 "-o", objects[-1]])
    archive = place / "lib" / f"lib{library.name}.a"
    archive.unlink(missing_ok=True)
    run([archiver, "rcs", archive, *objects])
    header = source / library.header
    (place / "include" / header.name).write_bytes(header.read_bytes())
    (place / "pkgconfig" / library.config()).write_text(  # last: it says that the library is complete
        f"Name: {library.name}\nDescription: {library.package}\nVersion: {library.version}\n"  # folders relative to this file, which may be moved
        f"Cflags: -I${{pcfiledir}}/../include {library.uses} {' '.join(defines)}\nLibs: -L${{pcfiledir}}/../lib -l{library.name}\n")


def build(deps, name, compiler, archiver, without=()):
    """Builds the libraries of target `name`, once; returns the folder of their .pc files."""
    place = deps / "libraries" / name
    missing = [library for library in LIBRARIES
               if library.name not in without and not (place / "pkgconfig" / library.config()).exists()]
    sources = fetch(deps) if missing else {}
    for folder in ("include", "lib", "pkgconfig", "objects"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    for library in missing:
        build_one(library, sources[library.package], place, name, compiler, archiver)
    return place / "pkgconfig"
