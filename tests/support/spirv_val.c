/* spirv_val.c — see spirv_val.h. What a validator does not know it calls by its number: an invalid capability. */
#include "spirv_val.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test_support.h"

static const char *validator(void) {
    const char *named = getenv("TRUNNION_SPIRV_VAL");
    return named ? named : "spirv-val";
}

/* What a command says, its first bytes; its exit status. */
static int run(const char *command, char *out, size_t size) {
    FILE *f = popen(command, "r");
    assert_non_null(f);
    out[fread(out, 1, size - 1, f)] = 0;
    while (fgetc(f) != EOF)
        continue;
    return pclose(f);
}

bool spirv_val_find(void) {
    char command[512], said[256];
    snprintf(command, sizeof command, "%s --version 2>&1", validator());
    bool found = run(command, said, sizeof said) == 0;
    if (!found) printf("skipped: no spirv-val (package spirv-tools): no module is validated\n");
    return found;
}

/* Once a process. */
static void say_too_old(void) {
    static bool told;
    char command[512], said[64];
    if (told) return;
    told = true;
    snprintf(command, sizeof command, "%s --version 2>&1 | cut -d' ' -f1-2", validator());
    (void)run(command, said, sizeof said);
    said[strcspn(said, "\n")] = 0;
    printf("skipped: spirv-val of %s does not know cooperative matrices: modules with them are not validated "
           "(TRUNNION_SPIRV_VAL names another one)\n",
           said);
}

bool spirv_val_check(const kir_rendering *module, const char *vulkan, const char *what) {
    char path[64], command[640], said[2048];
    snprintf(path, sizeof path, "/tmp/trunnion-spirv-%d.spv", (int)getpid());
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(tn_str_text(&module->text), 1, module->text.length, f), module->text.length);
    assert_int_equal(fclose(f), 0);
    snprintf(command, sizeof command, "%s --target-env vulkan%s %s 2>&1", validator(), vulkan, path);
    int status = run(command, said, sizeof said);
    bool unknown = status != 0 && strstr(said, "Invalid capability operand");
    if (unknown) say_too_old();
    if (status != 0 && !unknown) fail_msg("%s: %s is refused: %s", what, path, said);
    unlink(path);
    return !unknown;
}
