/* commands.h — the subcommands, one file each. */
#ifndef TRUNNION_CLI_COMMANDS_H
#define TRUNNION_CLI_COMMANDS_H

#include "cli/cli.h"

extern const cli_command cli_bench;
extern const cli_command cli_certify;
extern const cli_command cli_chat;
extern const cli_command cli_convert;
extern const cli_command cli_devices;
extern const cli_command cli_embed;
extern const cli_command cli_explain;
extern const cli_command cli_finetune;
extern const cli_command cli_fit;
extern const cli_command cli_generate;
extern const cli_command cli_info;
extern const cli_command cli_list;
extern const cli_command cli_logits;
extern const cli_command cli_onnx_test;
extern const cli_command cli_perplexity;
extern const cli_command cli_pull;
extern const cli_command cli_run;
extern const cli_command cli_serve;
extern const cli_command cli_tokenize;
extern const cli_command cli_train;
extern const cli_command cli_transcribe;
extern const cli_command cli_tune;

#endif
