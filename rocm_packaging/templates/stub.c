/* Starts the program whose path, relative to this program's own folder, is filled in below.
   argv[0] stays as it was given: clang decides by it what it is. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static volatile char target[1024] = "@@STUB-TARGET@@";

int main(int argc, char** argv) {
  char path[8192];
  (void)argc;
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof target - 1);
  if (length > 0) {
    path[length] = 0;
    char* end = strrchr(path, '/');
    if (end) {
      for (size_t i = 0; i < sizeof target; ++i) end[1 + i] = target[i];
      execv(path, argv);
    }
  }
  fprintf(stderr, "%s: %s: %s\n", argv[0], path, strerror(errno));
  return 127;
}
