/* process.h — this command once more, or another program, in a process of its own. */
#ifndef TN_CLI_PROCESS_H
#define TN_CLI_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

/* WebAssembly (WASI) has no processes and no signals; Windows starts programs, but cannot fork. */
#if defined(__wasi__)
#define CLI_HAS_PROCESSES 0
#elif !defined(CLI_HAS_PROCESSES)
#define CLI_HAS_PROCESSES 1
#endif
#if defined(_WIN32)
#define CLI_HAS_FORK 0
#else
#define CLI_HAS_FORK CLI_HAS_PROCESSES
#endif

typedef struct cli_process {
    const char *program; /* NULL: this executable; else the name of one, looked for as a shell does */
    const char *input;   /* NULL, or its standard input: at most PIPE_BUF bytes */
    double limit;        /* seconds until the child is killed; 0: none */
    char *output;        /* receives the last bytes that it writes, NUL-terminated; NULL: they are dropped */
    size_t output_size;  /* at least 2 */
    double seconds;      /* out: how long it ran */
    int status;          /* out: its exit status, -1 if it did not exit by itself */
    int error;           /* out: the errno that kept it from starting, else 0 */
} cli_process;

typedef enum cli_process_end {
    CLI_PROCESS_EXITED,
    CLI_PROCESS_CRASHED,
    CLI_PROCESS_LATE,
    CLI_PROCESS_NOT_STARTED
} cli_process_end;

/* Runs the program with `arguments` (NULL-terminated, the first one is the name) and waits for its end. */
cli_process_end cli_process_run(char *const arguments[], cli_process *p);

/* The path of this executable; false if the system does not tell. */
bool cli_own_path(char *out, size_t size);

#endif
