/* text.c — the smallest program that uses an installed libtrunnion-text: it was linked if a buffer takes what it is
 * given. */
#include <stdio.h>
#include <string.h>
#include <trunnion/text.h>

int main(void) {
    tn_bytes text = {0};
    tn_status status = tn_bytes_append(&text, "text", 4);
    int good = status == TN_OK && text.size == 4 && strcmp(text.data, "text") == 0;
    printf("libtrunnion-text %s\n", good ? "answers" : tn_error());
    tn_bytes_free(&text);
    return good ? 0 : 1;
}
