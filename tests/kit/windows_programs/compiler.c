/* A compiler for programs of Windows under Wine: hands its command line to the compilers of the machine beside it
   (tests/kit/windows_compiler.py), which answer on the port that the file `port` in its own folder names.

   A request is the tool's name, the current folder and the arguments, each ended by a null byte, and nothing behind
   them. An answer is three numbers of 32 bits, the exit status and the lengths of both streams, and the streams. */
#include <winsock2.h>
#include <windows.h>
#include <stdio.h>
#include <stdlib.h>
#include <wchar.h>

#define LONGEST 32768

static int fail(const char *problem) {
  fprintf(stderr, "compiler: %s\n", problem);
  return 126;
}

/* Send all bytes of a buffer; 0 where the connection is lost. */
static int send_bytes(SOCKET connection, const char *bytes, int count) {
  while (count > 0) {
    int sent = send(connection, bytes, count, 0);
    if (sent <= 0) return 0;
    bytes += sent;
    count -= sent;
  }
  return 1;
}

/* Send a text as UTF-8, with its null byte. */
static int send_text(SOCKET connection, const wchar_t *text) {
  static char bytes[4 * LONGEST];
  int count = WideCharToMultiByte(CP_UTF8, 0, text, -1, bytes, sizeof bytes, NULL, NULL);
  return count > 0 && send_bytes(connection, bytes, count);
}

/* Receive as many bytes as asked for; 0 where the connection is lost. */
static int receive_bytes(SOCKET connection, char *bytes, int count) {
  while (count > 0) {
    int received = recv(connection, bytes, count, 0);
    if (received <= 0) return 0;
    bytes += received;
    count -= received;
  }
  return 1;
}

/* Copy a stream of the answer to a stream of this program. */
static int copy_stream(SOCKET connection, unsigned length, DWORD stream) {
  char *bytes = malloc(length + 1);
  if (!bytes || !receive_bytes(connection, bytes, (int)length)) return 0;
  DWORD written;
  for (DWORD done = 0; done < length; done += written) {
    if (!WriteFile(GetStdHandle(stream), bytes + done, length - done, &written, NULL) || !written) break;
  }
  free(bytes);
  return 1;
}

int wmain(int count, wchar_t **arguments) {
  static wchar_t self[LONGEST], folder[LONGEST], port_file[LONGEST];
  GetModuleFileNameW(NULL, self, LONGEST);
  wchar_t *name = wcsrchr(self, L'\\') + 1;
  name[-1] = 0; /* what is left of `self` is its folder */
  wchar_t *suffix = wcsrchr(name, L'.');
  if (suffix) *suffix = 0;
  swprintf(port_file, LONGEST, L"%ls\\port", self);
  FILE *file = _wfopen(port_file, L"r");
  int port = 0;
  if (!file || fscanf(file, "%d", &port) != 1) return fail("no file `port` lies beside it");
  fclose(file);

  WSADATA data;
  WSAStartup(MAKEWORD(2, 2), &data);
  SOCKET connection = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {0};
  address.sin_family = AF_INET;
  address.sin_port = htons((u_short)port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(connection, (struct sockaddr *)&address, sizeof address)) return fail("nobody answers on its port");

  GetCurrentDirectoryW(LONGEST, folder);
  int sent = send_text(connection, name) && send_text(connection, folder);
  for (int i = 1; i < count && sent; ++i) sent = send_text(connection, arguments[i]);
  shutdown(connection, SD_SEND);

  unsigned answer[3];
  if (!sent || !receive_bytes(connection, (char *)answer, sizeof answer)) return fail("the connection was lost");
  if (!copy_stream(connection, answer[1], STD_OUTPUT_HANDLE)) return fail("the connection was lost");
  if (!copy_stream(connection, answer[2], STD_ERROR_HANDLE)) return fail("the connection was lost");
  return (int)answer[0];
}
