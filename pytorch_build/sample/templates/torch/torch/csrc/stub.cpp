// Keeps the contract of pytorch: stands for the module that upstream's torch/csrc/stub.c makes: compiled, beside the package's Python files.
extern "C" const char* at_config_show();

extern "C" __attribute__((visibility("default"))) const char* torch_stub() { return at_config_show(); }
