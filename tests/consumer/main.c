/* main.c — the smallest program that uses an installed libtrunnion: it was linked if it can tell the version, and it
 * was linked with the version of its headers if the two agree. */
#include <stdio.h>
#include <string.h>
#include <trunnion/status.h>

int main(void) {
    char expected[32];
    snprintf(expected, sizeof expected, "%d.%d.%d", TN_VERSION_MAJOR, TN_VERSION_MINOR, TN_VERSION_PATCH);
    printf("headers %s, library %s\n", expected, tn_version());
    return strcmp(expected, tn_version()) == 0 ? 0 : 1;
}
