/* spirv_val.h — SPIR-V modules before Khronos' validator: the program spirv-val, or the command that TRUNNION_SPIRV_VAL
 * names. */
#ifndef TN_SPIRV_VAL_H
#define TN_SPIRV_VAL_H

#include "kir/render.h"

/* Is there one? Says so where not: "skipped: …". */
bool spirv_val_find(void);

/* Fails the test when the validator finds fault with a module for this version of Vulkan ("1.1"); `what`: its name.
 * false: the validator does not know what the module is made of, it is too old. */
bool spirv_val_check(const kir_rendering *module, const char *vulkan, const char *what);

#endif
