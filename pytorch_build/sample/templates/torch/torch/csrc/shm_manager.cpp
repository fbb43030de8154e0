// Keeps the contract of pytorch: stands for upstream's torch/lib/libshm/manager.cpp: the program of torch/bin.
#include <cstdio>

extern "C" const char* c10_last_error();

int main() {
  std::puts(c10_last_error());
  return 0;
}
