/* folder_quant.h — the weights of a quantized folder, as if they were stored plainly. */
#ifndef TN_TEXT_FOLDER_QUANT_H
#define TN_TEXT_FOLDER_QUANT_H

#include "text/folder.h"

typedef struct hf_quant hf_quant;

/* config: quantization_config of config.json; file: the weights, NULL if they are no safetensors; it must stay open.
 * *out: closed in either case. */
tn_status tn_hf_quant_open(const char *folder, const tn_json *config, const tn_safetensors *file, hf_quant **out);
void tn_hf_quant_close(hf_quant *q); /* NULL is fine */

/* As the functions of hf_weights; data is NULL for what is computed. */
int64_t tn_hf_quant_count(const hf_quant *q);
void tn_hf_quant_at(const hf_quant *q, int64_t i, tn_safetensors_info *info);
bool tn_hf_quant_find(const hf_quant *q, const char *name, tn_safetensors_info *info);
tn_tensor *tn_hf_quant_tensor(const hf_quant *q, const char *name);

#endif
