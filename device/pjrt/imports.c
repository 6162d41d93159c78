// Replaces functions that a library takes from others, in the tables by which it calls them, once it is loaded. Only
// the library's own calls change: other callers of the same functions in this process are unaffected.
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

// Entries of relocations that hold a function's address.
static bool holds_address(uint64_t info) {
  switch (ELF64_R_TYPE(info)) {
#if defined(__x86_64__)
    case R_X86_64_64:
    case R_X86_64_GLOB_DAT:
    case R_X86_64_JUMP_SLOT:
      return true;
#elif defined(__aarch64__)
    case R_AARCH64_ABS64:
    case R_AARCH64_GLOB_DAT:
    case R_AARCH64_JUMP_SLOT:
      return true;
#endif
    default:
      return false;
  }
}

// A loaded library, as far as it matters here.
typedef struct {
  uintptr_t inside;  // an address in it
  bool itself;       // this code is in it, too
  uintptr_t base;
  const ElfW(Dyn) * dynamic;
  uintptr_t sealed, sealed_end;  // made read-only after it was loaded
} loaded;

static int find(struct dl_phdr_info* info, size_t size, void* arg) {
  (void)size;
  loaded* l = arg;
  loaded found = {.base = info->dlpi_addr};
  bool here = false;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr)* p = &info->dlpi_phdr[i];
    uintptr_t begin = info->dlpi_addr + p->p_vaddr;
    if (p->p_type == PT_LOAD && l->inside - begin < p->p_memsz) here = true;
    if (p->p_type == PT_LOAD && (uintptr_t)find - begin < p->p_memsz) found.itself = true;
    if (p->p_type == PT_DYNAMIC) found.dynamic = (const ElfW(Dyn)*)begin;
    if (p->p_type == PT_GNU_RELRO) {
      found.sealed = begin;
      found.sealed_end = begin + p->p_memsz;
    }
  }
  if (here) {
    found.inside = l->inside;
    *l = found;
  }
  return here;
}

// Writes an entry of a table. Returns false if the system does not let it.
static bool write_entry(const loaded* l, void** entry, void* function) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)entry & ~(page - 1);
  bool sealed = (uintptr_t)entry >= l->sealed && (uintptr_t)entry < l->sealed_end;
  if (sealed && mprotect((void*)at, page, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(entry, function, __ATOMIC_RELEASE);
  if (sealed) mprotect((void*)at, page, PROT_READ);
  return true;
}

// Replaces functions in a table of relocations. Returns false if one stays.
static bool replace(const loaded* l, const ElfW(Rela) * table, size_t bytes, const ElfW(Sym) * symbols,
                    const char* names, pwdrv_import* imports, size_t count) {
  for (size_t i = 0; i < bytes / sizeof *table; i++) {
    uint32_t symbol = (uint32_t)ELF64_R_SYM(table[i].r_info);
    if (symbol == 0 || !holds_address(table[i].r_info) || symbols[symbol].st_shndx != SHN_UNDEF) continue;
    for (size_t k = 0; k < count; k++) {
      if (strcmp(names + symbols[symbol].st_name, imports[k].name) != 0) continue;
      if (!write_entry(l, (void**)(l->base + table[i].r_offset), imports[k].function)) return false;
      imports[k].places++;
    }
  }
  return true;
}

bool pwdrv_replace_imports(const void* inside, pwdrv_import* imports, size_t count) {
  loaded l = {.inside = (uintptr_t)inside};
  // This library's own calls stay, so that what replaces a function can call it.
  if (dl_iterate_phdr(find, &l) == 0 || l.dynamic == NULL || l.itself) return true;
  const ElfW(Rela)*table = NULL, *calls = NULL;
  size_t bytes = 0, call_bytes = 0;
  const ElfW(Sym)* symbols = NULL;
  const char* names = NULL;
  bool plain = true;  // as all 64-bit systems have it
  for (const ElfW(Dyn)* d = l.dynamic; d->d_tag != DT_NULL; d++) {
    switch (d->d_tag) {
      case DT_RELA: table = (const ElfW(Rela)*)d->d_un.d_ptr; break;
      case DT_RELASZ: bytes = d->d_un.d_val; break;
      case DT_JMPREL: calls = (const ElfW(Rela)*)d->d_un.d_ptr; break;
      case DT_PLTRELSZ: call_bytes = d->d_un.d_val; break;
      case DT_PLTREL: plain = d->d_un.d_val == DT_RELA; break;
      case DT_SYMTAB: symbols = (const ElfW(Sym)*)d->d_un.d_ptr; break;
      case DT_STRTAB: names = (const char*)d->d_un.d_ptr; break;
      default: break;
    }
  }
  // If the loader leaves these as the file has them, they are no addresses.
  if (!plain || symbols == NULL || names == NULL || (uintptr_t)names < l.base) return true;
  return replace(&l, table, bytes, symbols, names, imports, count) &&
         replace(&l, calls, call_bytes, symbols, names, imports, count);
}
