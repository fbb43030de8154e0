#include <fstream>
#include <iostream>
#include <string>
struct Engine;
extern "C" int rocrand_create_generator(Engine**, int);
extern "C" int hipGetDeviceCount(int*);
int main() {
  Engine* engine = nullptr;
  int devices = 0;
  rocrand_create_generator(&engine, 401);
  hipGetDeviceCount(&devices);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find(".so") != std::string::npos) std::cout << line.substr(line.find('/')) << std::endl;
}
