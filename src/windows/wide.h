/* wide.h — for the files of this folder: names in UTF-16, and Win32's errors as errno. */
#ifndef TN_WINDOWS_WIDE_H
#define TN_WINDOWS_WIDE_H

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include "trunnion/status.h"

enum { TN_WIDE_PATH = 4096 };

/* A path for Win32: backslashes, and the prefix that lifts the limit of 260 characters if it is long. False with errno
 * set: not UTF-8, or longer than `out`. */
bool tn_win_path(const char *path, wchar_t out[TN_WIDE_PATH]);

/* UTF-8 of a text in UTF-16 (tn_win_wide: the reverse); NULL: out of memory, or not Unicode. Freed by free(). */
char *tn_win_narrow(const wchar_t *text);

/* Sets errno from GetLastError(); returns -1. */
int tn_win_error(void);

#endif
