// Every program of the sample on Windows is a copy of this one, and its name says what it does: hipcc and
// hipconfig are Python programs beside it, those of clang compile as hipcc, others say what the real one does.
#include <windows.h>
#include <stdio.h>
#include <wchar.h>

static wchar_t self[32768];

static bool is_file(const wchar_t* path) {
  DWORD attributes = GetFileAttributesW(path);
  return attributes != INVALID_FILE_ATTRIBUTES && !(attributes & FILE_ATTRIBUTE_DIRECTORY);
}

// The whole path of what lies at a path from a folder; false where it is no file.
static bool find(const wchar_t* folder, const wchar_t* relative, wchar_t* path) {
  static wchar_t joined[32768];
  swprintf(joined, 32768, L"%ls\\%ls", folder, relative);
  return GetFullPathNameW(joined, 32768, path, nullptr) && is_file(path);
}

// The Python of the environment that this ROCm is installed in, else the first of the PATH.
static bool find_python(const wchar_t* root, wchar_t* python) {
  return find(root, L"..\\..\\..\\Scripts\\python.exe", python) ||
         find(root, L"..\\..\\..\\python.exe", python) ||
         SearchPathW(nullptr, L"python.exe", nullptr, 32768, python, nullptr);
}

// What the command line holds behind the program's own name.
static const wchar_t* arguments() {
  const wchar_t* line = GetCommandLineW();
  bool quoted = false;
  while (*line && (quoted || (*line != L' ' && *line != L'\t'))) {
    if (*line == L'"') quoted = !quoted;
    ++line;
  }
  return line;
}

static int run_python(const wchar_t* root, const wchar_t* name) {
  static wchar_t script[32768], relative[256], python[32768], command[98304];
  swprintf(relative, 256, L"bin\\%ls.py", name);
  if (!find(root, relative, script)) {
    fprintf(stderr, "%ls is not there\n", script);
    return 1;
  }
  if (!find_python(root, python)) {
    fprintf(stderr, "%ls: no python.exe is in its environment or on the PATH\n", name);
    return 1;
  }
  swprintf(command, 98304, L"\"%ls\" \"%ls\"%ls", python, script, arguments());

  // What ends this program ends Python, too.
  HANDLE job = CreateJobObjectW(nullptr, nullptr);
  JOBOBJECT_EXTENDED_LIMIT_INFORMATION limits = {};
  limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE;
  SetInformationJobObject(job, JobObjectExtendedLimitInformation, &limits, sizeof limits);
  STARTUPINFOW startup = {};
  startup.cb = sizeof startup;
  PROCESS_INFORMATION process;
  if (!CreateProcessW(python, command, nullptr, nullptr, TRUE, 0, nullptr, nullptr, &startup, &process)) {
    fprintf(stderr, "%ls could not be started (%lu)\n", python, GetLastError());
    return 1;
  }
  AssignProcessToJobObject(job, process.hProcess);
  WaitForSingleObject(process.hProcess, INFINITE);
  DWORD status = 1;
  GetExitCodeProcess(process.hProcess, &status);
  return static_cast<int>(status);
}

static bool is_asked_for_help() {
  const wchar_t* text = wcsstr(arguments(), L"-help");
  return text && (text[5] == 0 || text[5] == L' ');
}

int main() {
  GetModuleFileNameW(nullptr, self, 32768);
  wchar_t* name = wcsrchr(self, L'\\') + 1;
  name[-1] = 0;  // what is left of `self` is its folder
  if (wchar_t* suffix = wcsrchr(name, L'.')) *suffix = 0;

  static wchar_t root[32768];
  bool is_of_llvm = wcsstr(self, L"\\llvm\\bin") != nullptr;
  swprintf(root, 32768, L"%ls\\%ls", self, is_of_llvm ? L"..\\..\\.." : L"..");

  if (!wcscmp(name, L"hipInfo")) return puts("no device"), 0;
  if (!wcscmp(name, L"amdflang")) return puts("OVERVIEW: flang LLVM compiler"), 0;
  if (wcsstr(name, L"lld") || wcsstr(name, L"hipify")) return printf("USAGE: %ls [options]\n", name), 0;
  if (!is_of_llvm) return run_python(root, name);
  if (is_asked_for_help()) {
    return printf("OVERVIEW: clang LLVM compiler\n\nUSAGE: %ls [options] file...\n", name), 0;
  }
  return run_python(root, L"hipcc");
}
