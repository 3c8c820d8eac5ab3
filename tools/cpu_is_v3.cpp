// Exit code 0 where the machine has all of x86-64-v3, the operating system's part included.
#include <cpuid.h>

int main() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c1 = 0;
  unsigned c81 = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c1, &d) == 0 || __get_cpuid(0x80000001, &a, &b, &c81, &d) == 0) return 1;
  const bool movbe_f16c = (c1 & bit_MOVBE) != 0 && (c1 & bit_F16C) != 0;
  const bool lzcnt = (c81 & (1U << 5)) != 0;
  // These ask whether the operating system saves the wide registers, too.
  const bool vectors = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool bits = __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  return movbe_f16c && lzcnt && vectors && bits ? 0 : 1;
}
