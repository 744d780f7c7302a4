/* onnx_test.c — `trunnion onnx-test`: runs cases in the layout of ONNX's own tests and says which pass.
 *
 * The cases run one after another in a process of their own, which tells each result through a pipe. A case that
 * crashes or never ends takes that process with it and is told as failed; another process goes on behind it. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/process.h"
#include "cli/run/image.h"
#include "cli/run/run.h"
#include "trunnion/onnx.h"

#if CLI_HAS_FORK
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

enum { PATH = 4096, WHY = 600, DEEPEST = 3 /* folders in folders */ };

static int run_onnx_test(int argc, char **argv);

const cli_command cli_onnx_test = {
    .name = "onnx-test",
    .summary = "run ONNX backend test cases",
    .usage = "onnx-test DIR… [--filter TEXT]",
    .help = "  --filter TEXT         run only cases whose names contain TEXT\n"
            "  --atol X              absolute tolerance (default: the case's, else 1e-7)\n"
            "  --rtol X              relative tolerance (default: the case's, else 1e-3)\n"
            "  --seconds N           time limit of a case (default 60)\n"
            "  --recorded            on engine:onnxruntime: record the model's operators and\n"
            "                        have the engine compute that, not the file\n"
            "  -v, --verbose         also list passed cases\n"
            "  --json                passed, failed, skipped, cases[{name, result, why}], device\n"
            "\n"
            "DIR is a case (model.onnx and test_data_set_K/{input,output}_J.pb), or a folder of cases. A case is "
            "skipped\n"
            "if its model has unsupported operators. A crash fails only its own case.\n"
            "\n"
            "examples:\n"
            "  trunnion onnx-test cases/test_add\n"
            "  trunnion onnx-test cases --filter conv --device opencl --strict\n",
    .accepts = CLI_JSON | CLI_DEVICE | CLI_THREADS | CLI_VERBOSE,
    .run = run_onnx_test,
};

typedef struct test_case {
    char *folder;
    onnx_result result;
    char *why; /* NULL if the allocation failed */
} test_case;

typedef struct tests {
    onnx_tolerance tolerance;
    const char *filter;
    int64_t seconds;
    bool recorded;
    cli_options options;
    test_case *cases;
    size_t count, room;
    int64_t of[ONNX_RESULTS];
    char device[64];
} tests;

static const char *const result_names[ONNX_RESULTS] = {"passed", "failed", "skipped"};

/* ---- finding the cases ------------------------------------------------------------------------------------------- */

static const char *onnx_test_name_of(const char *folder) {
    const char *slash = strrchr(folder, '/');
    return slash ? slash + 1 : folder;
}

static int by_folder(const void *a, const void *b) {
    return strcmp(((const test_case *)a)->folder, ((const test_case *)b)->folder);
}

static bool is_kind(const char *path, mode_t kind) {
    struct stat facts;
    return stat(path, &facts) == 0 && (facts.st_mode & S_IFMT) == kind;
}

static bool add_case(tests *t, const char *folder) {
    if (t->filter && !strstr(onnx_test_name_of(folder), t->filter)) return true;
    if (t->count == t->room) {
        size_t room = t->room ? 2 * t->room : 64;
        test_case *more = realloc(t->cases, room * sizeof *more);
        if (!more) return false;
        t->cases = more;
        t->room = room;
    }
    char *copy = strdup(folder);
    if (copy) t->cases[t->count++] = (test_case){.folder = copy, .result = ONNX_FAILED};
    return copy != NULL;
}

static bool find_cases(tests *t, const char *folder, int depth) {
    char path[PATH];
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    if (is_kind(path, S_IFREG)) return add_case(t, folder);
    DIR *d = depth < DEEPEST ? opendir(folder) : NULL;
    bool good = true;
    for (struct dirent *e = d ? readdir(d) : NULL; e && good; e = readdir(d)) {
        int length = snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] == '.' || length >= PATH || !is_kind(path, S_IFDIR)) continue;
        good = find_cases(t, path, depth + 1);
    }
    if (d) closedir(d);
    return good;
}

static void note_onnx_test(tests *t, size_t i, int result, const char *why) {
    test_case *c = &t->cases[i];
    c->result = result >= 0 && result < ONNX_RESULTS ? (onnx_result)result : ONNX_FAILED;
    c->why = strdup(why);
    t->of[c->result]++;
    if (t->options.json || (c->result == ONNX_PASSED && !t->options.verbose)) return;
    printf("%-7s %s%s%s\n", result_names[c->result], onnx_test_name_of(c->folder), *why ? ": " : "", why);
    fflush(stdout);
}

#if CLI_HAS_FORK

/* ---- the process that runs them ---------------------------------------------------------------------------------- */

/* What goes through the pipe: this, then `length` bytes of text. result ONNX_RESULTS: the text is the device's name. */
typedef struct report {
    int32_t result, length;
} report;

static void tell(int pipe, int result, const char *text) {
    char room[sizeof(report) + WHY];
    report r = {result, (int32_t)strnlen(text, WHY)};
    memcpy(room, &r, sizeof r);
    memcpy(room + sizeof r, text, (size_t)r.length);
    size_t size = sizeof r + (size_t)r.length;
    if (write(pipe, room, size) != (ssize_t)size) _exit(CLI_FAILED); /* at most PIPE_BUF bytes: whole or not at all */
}

static void work_onnx_test(const tests *t, size_t from, int pipe) {
    int code = CLI_FAILED;
    tn_device_info info = {.struct_size = sizeof info};
    tn_device *device = cli_open_device(&t->options, &code);
    if (!device) _exit(code);
    (void)tn_device_get_info(device, &info);
    tell(pipe, ONNX_RESULTS, info.id);
    for (size_t i = from; i < t->count; i++) {
        char why[WHY];
        onnx_result result = onnx_case_run(t->cases[i].folder, t->tolerance, t->recorded, why, sizeof why);
        tell(pipe, (int)result, why);
    }
    _exit(CLI_OK);
}

/* ---- the process that listens ------------------------------------------------------------------------------------ */

static bool read_pipe(int pipe, void *out, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n = read(pipe, (char *)out + done, size - done);
        if (n <= 0 && !(n < 0 && errno == EINTR)) return false;
        if (n > 0) done += (size_t)n;
    }
    return true;
}

/* Waits at most `seconds` for something to read. */
static bool comes(int pipe, int64_t seconds) {
    struct pollfd p = {.fd = pipe, .events = POLLIN};
    int n;
    do
        n = poll(&p, 1, (int)(seconds * 1000));
    while (n < 0 && errno == EINTR);
    return n > 0;
}

/* Takes results from the process until it ends or is silent for too long. Returns the next case. */
static size_t listen_to(tests *t, size_t next, int pipe, pid_t child, bool *late) {
    report r;
    char text[WHY + 1];
    cli_progress p;
    cli_progress_begin(&p, "onnx-test", "cases", (int64_t)t->count);
    while (next < t->count) {
        if (!comes(pipe, t->seconds)) {
            *late = true;
            kill(child, SIGKILL);
            break;
        }
        if (!read_pipe(pipe, &r, sizeof r) || r.length < 0 || r.length > WHY) break;
        if (!read_pipe(pipe, text, (size_t)r.length)) break;
        text[r.length] = 0;
        if (r.result == ONNX_RESULTS)
            snprintf(t->device, sizeof t->device, "%.*s", (int)sizeof t->device - 1, text);
        else
            note_onnx_test(t, next++, r.result, text);
        cli_progress_update(&p, (int64_t)next, "");
    }
    cli_progress_end(&p);
    return next;
}

/* Runs the cases from `*next` on, as far as one process gets. A code other than CLI_OK ends all: no device. */
static int run_some(tests *t, size_t *next) {
    int ends[2], state = 0;
    bool late = false;
    char why[80];
    fflush(NULL);
    if (pipe(ends) != 0) return CLI_FAILED;
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        work_onnx_test(t, *next, ends[1]);
    }
    close(ends[1]);
    if (child > 0) cli_child_begin(child);
    t->device[0] = 0;
    if (child > 0) *next = listen_to(t, *next, ends[0], child, &late);
    close(ends[0]);
    bool ended = child > 0 && waitpid(child, &state, 0) == child;
    cli_child_end();
    if (!ended)
        return cli_fail(TN_ERR_INTERNAL, "the test process could not be started or waited for: %s", strerror(errno));
    if (!t->device[0]) cli_note_failure("unavailable", "the device could not be opened", "see: trunnion devices");
    if (!t->device[0]) return WIFEXITED(state) && WEXITSTATUS(state) ? WEXITSTATUS(state) : CLI_FAILED;
    if (*next == t->count) return CLI_OK;
    if (late)
        snprintf(why, sizeof why, "it did not end within %lld s", (long long)t->seconds);
    else if (WIFSIGNALED(state))
        snprintf(why, sizeof why, "it crashed: %s", strsignal(WTERMSIG(state)));
    else
        snprintf(why, sizeof why, "its process ended with status %d", WEXITSTATUS(state));
    note_onnx_test(t, (*next)++, ONNX_FAILED, why);
    return CLI_OK;
}

#else /* no processes: a case that crashes ends the command */

static int run_some(tests *t, size_t *next) {
    int code = CLI_FAILED;
    tn_device_info info = {.struct_size = sizeof info};
    tn_device *device = cli_open_device(&t->options, &code);
    if (!device) return code;
    (void)tn_device_get_info(device, &info);
    snprintf(t->device, sizeof t->device, "%s", info.id);
    for (; *next < t->count; (*next)++) {
        char why[WHY];
        onnx_result result = onnx_case_run(t->cases[*next].folder, t->tolerance, t->recorded, why, sizeof why);
        note_onnx_test(t, *next, (int)result, why);
    }
    return CLI_OK;
}

#endif

static void put_json_onnx_test(const tests *t) {
    cli_json j = {.out = stdout};
    cli_json_write(&j, "{");
    for (int k = 0; k < ONNX_RESULTS; k++)
        cli_json_write(&j, "%s: %jd", result_names[k], t->of[k]);
    cli_json_write(&j, "'device': %s, 'cases': [", t->device);
    for (size_t i = 0; i < t->count; i++) {
        cli_json_write(&j, "{'name': %s, 'result': %s, 'why': %s}", onnx_test_name_of(t->cases[i].folder),
                       result_names[t->cases[i].result], t->cases[i].why);
    }
    cli_json_write(&j, "]}");
}

static int run_all_onnx_test(tests *t) {
    int code = CLI_OK;
    qsort(t->cases, t->count, sizeof *t->cases, by_folder);
    for (size_t next = 0; next < t->count && code == CLI_OK;)
        code = run_some(t, &next);
    if (code != CLI_OK) return code;
    if (t->options.json)
        put_json_onnx_test(t);
    else
        printf("%lld passed, %lld failed, %lld skipped\n", (long long)t->of[ONNX_PASSED], (long long)t->of[ONNX_FAILED],
               (long long)t->of[ONNX_SKIPPED]);
    return t->of[ONNX_FAILED] ? CLI_FAILED : CLI_OK;
}

static void free_cases(tests *t) {
    for (size_t i = 0; i < t->count; i++) {
        free(t->cases[i].folder);
        free(t->cases[i].why);
    }
    free(t->cases);
}

static int run_onnx_test(int argc, char **argv) {
    static const cli_option own[] = {
        CLI_REAL("atol", 0, tests, tolerance.absolute, 0, INFINITY),
        CLI_REAL("rtol", 0, tests, tolerance.relative, 0, INFINITY),
        CLI_TEXT("filter", 0, tests, filter),
        CLI_INT("seconds", 0, tests, seconds, 1, 86400),
        CLI_FLAG("recorded", 0, tests, recorded),
        {0},
    };
    tests t = {.tolerance = {-1, -1}, .seconds = 60};
    tn_onnx_set_image_decoder(image_decode_for_onnx);
    int status, first = cli_parse(&cli_onnx_test, argc, argv, &t.options, own, &t, &status);
    if (first < 0) return status;
    if (first == argc) return cli_wrong_usage(&cli_onnx_test, "missing argument: pass the folder of the cases");
    bool good = true;
    for (int i = first; i < argc && good; i++) {
        size_t length = strlen(argv[i]);
        while (length > 1 && argv[i][length - 1] == '/')
            argv[i][--length] = 0;
        size_t before = t.count;
        good = find_cases(&t, argv[i], 0);
        if (!good || t.count > before || t.filter) continue;
        free_cases(&t);
        return cli_fail(TN_ERR_IO, "no test cases in '%s': %s", argv[i],
                        cli_is_folder(argv[i]) ? "it contains no model.onnx" : "the folder does not exist");
    }
    int code = CLI_FAILED;
    if (good && t.count == 0)
        code = cli_fail(TN_ERR_ARGUMENT, "no case name contains \"%s\"", t.filter);
    else if (good)
        code = run_all_onnx_test(&t);
    else
        code = cli_fail(TN_ERR_MEMORY, "out of memory for the list of cases");
    free_cases(&t);
    return code;
}
