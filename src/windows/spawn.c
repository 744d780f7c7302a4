/* spawn.c — libraries, environment, child processes, signals and the terminal of posix.h on Win32. */
#if defined(_WIN32)
#include "windows/wide.h"

#include <ntsecapi.h>
#include <shellapi.h>
#include <stdatomic.h>
#include <wchar.h>

#undef strrchr

/* ---- libraries --------------------------------------------------------------------------------------------------- */

static _Thread_local char library_error[600];

/* A name without a folder is looked for beside the program and in the system's folders, never in the working folder. */
void *tn_win_dlopen(const char *path, TN_UNUSED int flags) {
    wchar_t wide[TN_WIDE_PATH], found[MAX_PATH];
    if (!tn_win_path(path, wide)) {
        snprintf(library_error, sizeof library_error, "%.200s: No such file: not a path", path);
        return NULL;
    }
    bool in_folder = wcschr(wide, L'\\') != NULL;
    DWORD how = LOAD_LIBRARY_SEARCH_DEFAULT_DIRS | (in_folder ? LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR : 0U);
    wchar_t full[TN_WIDE_PATH];
    if (in_folder && GetFullPathNameW(wide, TN_WIDE_PATH, full, NULL) < TN_WIDE_PATH) wcscpy(wide, full);
    UINT mode = SetErrorMode(SEM_FAILCRITICALERRORS); /* no window */
    HMODULE library = LoadLibraryExW(wide, NULL, how);
    DWORD error = GetLastError();
    SetErrorMode(mode);
    if (library) return library;
    bool there = in_folder ? GetFileAttributesW(wide) != INVALID_FILE_ATTRIBUTES
                           : SearchPathW(NULL, wide, NULL, MAX_PATH, found, NULL) > 0;
    const char *what = !there                          ? "No such file"
                       : error == ERROR_MOD_NOT_FOUND  ? "a library that it needs was not found"
                       : error == ERROR_BAD_EXE_FORMAT ? "it is for another processor"
                       : error == ERROR_PROC_NOT_FOUND ? "undefined symbol in it"
                       : error == ERROR_ACCESS_DENIED  ? "Permission denied"
                                                       : "it could not be initialised";
    snprintf(library_error, sizeof library_error, "%.300s: %s (Windows error %lu)", path, what, (unsigned long)error);
    return NULL;
}

void *tn_win_dlsym(void *library, const char *name) { return (void *)(uintptr_t)GetProcAddress(library, name); }

int tn_win_dlclose(void *library) { return FreeLibrary(library) ? 0 : -1; }

char *tn_win_dlerror(void) { return library_error; }

/* ---- environment ------------------------------------------------------------------------------------------------- */

/* Values in UTF-8 that getenv returned: they stay, because callers keep them. */
typedef struct variable {
    struct variable *next;
    char *value;
    char name[];
} variable;
static variable *variables;
static pthread_mutex_t variables_lock = PTHREAD_MUTEX_INITIALIZER;

static char *keep(const char *name, char *value) {
    size_t n = strlen(name) + 1;
    char *kept = NULL;
    pthread_mutex_lock(&variables_lock);
    for (const variable *v = variables; v && !kept; v = v->next)
        if (!strcmp(v->name, name) && !strcmp(v->value, value)) kept = v->value;
    variable *v = kept ? NULL : malloc(sizeof *v + n);
    if (v) {
        memcpy(v->name, name, n);
        v->value = kept = value;
        v->next = variables;
        variables = v;
    }
    pthread_mutex_unlock(&variables_lock);
    if (kept != value) free(value);
    return kept;
}

static char *read_variable(const char *name) {
    wchar_t *wide_name = tn_win_wide(name), *value = NULL;
    DWORD n = wide_name ? GetEnvironmentVariableW(wide_name, NULL, 0) : 0;
    if (n > 0) value = malloc(n * sizeof *value);
    char *narrow = value && GetEnvironmentVariableW(wide_name, value, n) < n ? tn_win_narrow(value) : NULL;
    free(value);
    free(wide_name);
    return narrow;
}

char *tn_win_getenv(const char *name) {
    static const char *const others[][2] = {{"HOME", "USERPROFILE"}, {"TMPDIR", "TEMP"}};
    char *value = read_variable(name);
    for (size_t i = 0; !value && i < sizeof others / sizeof *others; i++)
        if (!strcmp(name, others[i][0])) value = read_variable(others[i][1]);
    return value ? keep(name, value) : NULL;
}

int tn_win_setenv(const char *name, const char *value, int replace) {
    if (!replace && tn_win_getenv(name)) return 0;
    wchar_t *wide_name = tn_win_wide(name), *wide = value ? tn_win_wide(value) : NULL;
    bool done = wide_name && (wide || !value) && SetEnvironmentVariableW(wide_name, wide);
    if (!done) errno = ENOMEM;
    free(wide_name);
    free(wide);
    return done ? 0 : -1;
}

int tn_win_unsetenv(const char *name) {
    (void)tn_win_setenv(name, NULL, 1);
    return 0;
}

int64_t tn_win_sysconf(int what) {
    SYSTEM_INFO s;
    MEMORYSTATUSEX m = {.dwLength = sizeof m};
    DWORD_PTR mine = 0, all = 0;
    GetSystemInfo(&s);
    if (what == _SC_PAGESIZE) return s.dwPageSize;
    if (what == _SC_NPROCESSORS_ONLN) {
        /* A process in several groups of processors has no mask: all count then. */
        bool one_group = GetProcessAffinityMask(GetCurrentProcess(), &mine, &all) && mine;
        return one_group ? __builtin_popcountll(mine) : (int64_t)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
    }
    if (!GlobalMemoryStatusEx(&m)) return -1;
    return (int64_t)((what == _SC_PHYS_PAGES ? m.ullTotalPhys : m.ullAvailPhys) / s.dwPageSize);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

char *tn_win_strrchr(const char *text, int c) {
    char *last = strrchr(text, c), *other = c == '/' ? strrchr(text, '\\') : NULL;
    return !last || (other && other > last) ? other : last;
}

char *tn_win_strndup(const char *text, size_t most) {
    size_t n = strnlen(text, most);
    char *copy = malloc(n + 1);
    if (!copy) return NULL;
    memcpy(copy, text, n);
    copy[n] = 0;
    return copy;
}

char *tn_win_strcasestr(const char *text, const char *part) {
    size_t n = strlen(part);
    for (; *text; text++)
        if (_strnicmp(text, part, n) == 0) return (char *)(uintptr_t)text;
    return n ? NULL : (char *)(uintptr_t)text;
}

void *tn_win_memmem(const void *in, size_t bytes, const void *part, size_t part_bytes) {
    const char *at = in;
    if (part_bytes == 0) return (void *)(uintptr_t)at;
    for (; bytes >= part_bytes; at++, bytes--)
        if (*at == *(const char *)part && !memcmp(at, part, part_bytes)) return (void *)(uintptr_t)at;
    return NULL;
}

int tn_win_getentropy(void *to, size_t bytes) { return RtlGenRandom(to, (ULONG)bytes) ? 0 : -1; }

locale_t tn_win_newlocale(TN_UNUSED int mask, TN_UNUSED const char *name, TN_UNUSED locale_t base) { return 1; }

/* 1 enters the "C" locale, 2 leaves it. */
locale_t tn_win_uselocale(locale_t next) {
    static _Thread_local char before[256];
    static _Thread_local int mode;
    if (next == 1) {
        const char *name = setlocale(LC_ALL, NULL);
        snprintf(before, sizeof before, "%s", name ? name : "C");
        mode = _configthreadlocale(_ENABLE_PER_THREAD_LOCALE);
        setlocale(LC_ALL, "C");
    } else {
        setlocale(LC_ALL, before);
        if (mode == _DISABLE_PER_THREAD_LOCALE) _configthreadlocale(_DISABLE_PER_THREAD_LOCALE);
    }
    return 2;
}

/* ---- child processes --------------------------------------------------------------------------------------------- */

int tn_win_pipe(int ends[2]) { return _pipe(ends, 1 << 16, _O_BINARY | _O_NOINHERIT); }

int posix_spawn_file_actions_init(posix_spawn_file_actions_t *files) {
    *files = (posix_spawn_file_actions_t){-1, -1};
    return 0;
}

int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *files, int from, int to) {
    if (to == STDIN_FILENO) files->input = from;
    if (to == STDOUT_FILENO) files->output = from;
    return 0;
}

int posix_spawn_file_actions_addclose(posix_spawn_file_actions_t *files, int fd) {
    (void)files, (void)fd; /* nothing else is inherited */
    return 0;
}

int posix_spawn_file_actions_destroy(TN_UNUSED posix_spawn_file_actions_t *files) { return 0; }

/* One argument as the C library of the child takes it apart: in quotes, with a backslash before quotes, and backslashes
 * before those doubled. */
static wchar_t *quote(wchar_t *to, const wchar_t *argument) {
    *to++ = L'"';
    for (size_t slashes = 0;; argument++) {
        if (*argument == L'\\') slashes++;
        if (*argument == L'"' || !*argument)
            for (slashes += *argument == L'"'; slashes > 0; slashes--)
                *to++ = L'\\';
        if (!*argument) break;
        if (*argument != L'\\') slashes = 0;
        *to++ = *argument;
    }
    *to++ = L'"';
    *to++ = L' ';
    return to;
}

static wchar_t *command_line(char *const arguments[]) {
    size_t room = 1;
    for (int i = 0; arguments[i]; i++)
        room += 2 * strlen(arguments[i]) + 3;
    wchar_t *line = malloc(room * sizeof *line), *to = line;
    for (int i = 0; line && arguments[i]; i++) {
        wchar_t *wide = tn_win_wide(arguments[i]);
        if (wide) to = quote(to, wide);
        free(wide);
    }
    if (line) *to = 0;
    return line;
}

static HANDLE to_inherit(int fd, DWORD standard) {
    HANDLE from = fd >= 0 ? (HANDLE)_get_osfhandle(fd) : GetStdHandle(standard), copy = NULL;
    HANDLE self = GetCurrentProcess();
    if (!from || !DuplicateHandle(self, from, self, &copy, 0, TRUE, DUPLICATE_SAME_ACCESS)) return NULL;
    return copy;
}

/* Processes that were started and not waited for. */
enum { MOST_CHILDREN = 64 };
static struct {
    pid_t process; /* 0: this entry is free */
    HANDLE handle;
} children[MOST_CHILDREN];
static pthread_mutex_t children_lock = PTHREAD_MUTEX_INITIALIZER;

static bool add_child(pid_t process, HANDLE handle) {
    int i = 0;
    pthread_mutex_lock(&children_lock);
    while (i < MOST_CHILDREN && children[i].process)
        i++;
    if (i < MOST_CHILDREN) children[i].process = process, children[i].handle = handle;
    pthread_mutex_unlock(&children_lock);
    return i < MOST_CHILDREN;
}

/* The handle of a child, which leaves the list if `take` says so; NULL: not a child. */
static HANDLE find_child(pid_t process, bool take) {
    HANDLE found = NULL;
    pthread_mutex_lock(&children_lock);
    for (int i = 0; i < MOST_CHILDREN && process; i++) {
        if (children[i].process != process) continue;
        found = children[i].handle;
        if (take) children[i].process = 0;
    }
    pthread_mutex_unlock(&children_lock);
    return found;
}

/* The program's file: the name with or without .exe, looked for as the system does. */
static bool find_program(const char *program, wchar_t out[MAX_PATH]) {
    wchar_t wide[TN_WIDE_PATH];
    return tn_win_path(program, wide) && SearchPathW(NULL, wide, L".exe", MAX_PATH, out, NULL) > 0;
}

int posix_spawnp(pid_t *process, const char *program, const posix_spawn_file_actions_t *files,
                 TN_UNUSED const void *attributes, char *const arguments[], TN_UNUSED char *const environment[]) {
    wchar_t path[MAX_PATH];
    if (!find_program(program, path)) return ENOENT;
    wchar_t *line = command_line(arguments);
    if (!line) return ENOMEM;
    HANDLE ends[3] = {to_inherit(files->input, STD_INPUT_HANDLE), to_inherit(files->output, STD_OUTPUT_HANDLE),
                      to_inherit(-1, STD_ERROR_HANDLE)};
    STARTUPINFOW start = {.cb = sizeof start,
                          .dwFlags = STARTF_USESTDHANDLES,
                          .hStdInput = ends[0],
                          .hStdOutput = ends[1],
                          .hStdError = ends[2]};
    PROCESS_INFORMATION made;
    int error = 0;
    if (CreateProcessW(path, line, NULL, NULL, TRUE, 0, NULL, NULL, &start, &made)) {
        *process = made.dwProcessId;
        CloseHandle(made.hThread);
        if (!add_child(*process, made.hProcess)) {
            TerminateProcess(made.hProcess, 1);
            CloseHandle(made.hProcess);
            error = EAGAIN;
        }
    } else {
        tn_win_error();
        error = errno;
    }
    for (int i = 0; i < 3; i++)
        if (ends[i]) CloseHandle(ends[i]);
    free(line);
    return error;
}

pid_t tn_win_waitpid(pid_t process, int *status, int options) {
    HANDLE h = find_child(process, false);
    DWORD code = 0;
    if (!h) {
        errno = ECHILD;
        return -1;
    }
    if (WaitForSingleObject(h, options & WNOHANG ? 0 : INFINITE) != WAIT_OBJECT_0) return 0;
    GetExitCodeProcess(h, &code);
    CloseHandle(find_child(process, true));
    *status = (int)code; /* exceptions and kill give negative numbers */
    return process;
}

int tn_win_kill(pid_t process, int number) {
    HANDLE h = find_child(process, false);
    return h && TerminateProcess(h, (UINT)-number) ? 0 : -1;
}

/* ---- signals ----------------------------------------------------------------------------------------------------- */

static void (*handlers[NSIG])(int);
static _Atomic int signals_seen; /* poll returns when one comes */

static BOOL WINAPI on_control(DWORD event) {
    int number = event == CTRL_CLOSE_EVENT                                    ? SIGHUP
                 : event == CTRL_LOGOFF_EVENT || event == CTRL_SHUTDOWN_EVENT ? SIGTERM
                                                                              : SIGINT;
    if (!handlers[number]) return FALSE;
    handlers[number](number);
    atomic_fetch_add(&signals_seen, 1);
    if (event >= CTRL_CLOSE_EVENT) Sleep(INFINITE); /* Windows ends the process when this returns: first it may save */
    return TRUE;
}

int tn_win_sigaction(int number, const struct tn_win_sigaction *action, struct tn_win_sigaction *before) {
    static bool installed;
    if (before) *before = (struct tn_win_sigaction){.sa_handler = handlers[number]};
    if (!action) return 0;
    handlers[number] = action->sa_handler;
    if (!installed) installed = SetConsoleCtrlHandler(on_control, TRUE);
    return installed ? 0 : -1;
}

/* ---- the terminal ------------------------------------------------------------------------------------------------ */

/* Whether there is something to read now, or the other end has closed. */
static bool is_readable(HANDLE h, short *events) {
    DWORD type = GetFileType(h), available = 0;
    *events = POLLIN;
    if (type == FILE_TYPE_CHAR) return WaitForSingleObject(h, 0) == WAIT_OBJECT_0;
    if (type != FILE_TYPE_PIPE) return true;
    if (!PeekNamedPipe(h, NULL, 0, NULL, &available, NULL)) *events = POLLIN | POLLHUP;
    return available > 0 || *events & POLLHUP;
}

int tn_win_poll(struct pollfd *all, unsigned count, int milliseconds) {
    HANDLE h = count == 1 ? (HANDLE)_get_osfhandle(all->fd) : INVALID_HANDLE_VALUE;
    int seen = atomic_load(&signals_seen);
    ULONGLONG begun = GetTickCount64();
    enum { STEP = 10 }; /* milliseconds between two looks, as there is no common way to wait for pipes and consoles */
    if (h == INVALID_HANDLE_VALUE) {
        errno = EINVAL;
        return -1;
    }
    while (!is_readable(h, &all->revents)) {
        if (atomic_load(&signals_seen) != seen) {
            errno = EINTR;
            return -1;
        }
        all->revents = 0;
        if (milliseconds >= 0 && GetTickCount64() - begun >= (ULONGLONG)milliseconds) return 0;
        Sleep(STEP);
    }
    return 1;
}

int tn_win_ioctl(int fd, int request, struct winsize *out) {
    CONSOLE_SCREEN_BUFFER_INFO i;
    if (request != TIOCGWINSZ || !GetConsoleScreenBufferInfo((HANDLE)_get_osfhandle(fd), &i)) return -1;
    out->ws_col = (unsigned short)(i.srWindow.Right - i.srWindow.Left + 1);
    out->ws_row = (unsigned short)(i.srWindow.Bottom - i.srWindow.Top + 1);
    return 0;
}

static UINT code_page_before;

static void restore_code_page(void) { SetConsoleOutputCP(code_page_before); }

static void begin_terminal(void) {
    DWORD mode;
    HANDLE out = GetStdHandle(STD_OUTPUT_HANDLE);
    code_page_before = GetConsoleOutputCP();
    if (code_page_before) {
        SetConsoleOutputCP(CP_UTF8);
        SetConsoleCP(CP_UTF8);
        atexit(restore_code_page);
    }
    tn_win_setenv("LANG", "C.UTF-8", 0);
    bool colours = GetConsoleMode(out, &mode) && SetConsoleMode(out, mode | ENABLE_VIRTUAL_TERMINAL_PROCESSING);
    if (colours) tn_win_setenv("TERM", "xterm", 0);
}

/* The C library ends the program at a wrong argument, where POSIX returns an error. */
static void ignore_argument(TN_UNUSED const wchar_t *expression, TN_UNUSED const wchar_t *function,
                            TN_UNUSED const wchar_t *file, TN_UNUSED unsigned line, TN_UNUSED uintptr_t reserved) {}

void tn_win_begin(int *argc, char ***argv) {
    int count = 0;
    wchar_t **wide = CommandLineToArgvW(GetCommandLineW(), &count);
    char **narrow = wide ? calloc((size_t)count + 1, sizeof *narrow) : NULL;
    _set_invalid_parameter_handler(ignore_argument);
    for (int fd = 0; fd < 3; fd++)
        _setmode(fd, _O_BINARY);
    begin_terminal();
    if (!narrow) return; /* the system's own words stay */
    for (int i = 0; i < count; i++)
        narrow[i] = tn_win_narrow(wide[i]);
    LocalFree(wide);
    *argc = count;
    *argv = narrow;
}

#else
typedef int tn_process_is_there; /* a file of C is not empty */
#endif
