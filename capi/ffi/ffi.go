// Package ffi is the native side of XLA FFI when the driver's plugin lives in
// the user's process: it carries FFI handlers (LAPACK, user targets of jax.ffi,
// host callbacks) from the process that made them to the PJRT plugin that runs
// them, and, on a cluster, to the workers whose plugins run them (cluster.go). All
// but that is C.
//
// What it guarantees:
//
//   - A registration is answered by the plugin's own registry, with the whole
//     bundle of stages, so a refusal comes back as an error with the plugin's
//     text and both FFI versions. Registrations made before a plugin is
//     attached wait and are replayed in order; what is refused then is kept
//     for pathways_ffi_refusals.
//   - Handlers built against a newer minor version of XLA FFI than the plugin's
//     run: each is wrapped by a trampoline that answers the version probe with
//     the plugin's minor version. Another major version is refused.
//   - Host callbacks run the Python callables that jaxlib hands to the
//     execution. An exception, a wrong result or a closed interpreter is an
//     XLA_FFI_Error, never a crash, and nothing calls into Python after
//     pathways_ffi_close.
//   - Memory that is not there is an error: RESOURCE_EXHAUSTED.
//
// Concurrency: every function may be called from any thread, with or without
// the GIL. No lock is held while the plugin or a handler runs, and no Go frame
// is on the path of a handler.
//
// Importers: capi packages only (ffi.h is the contract between them).
package ffi

// #cgo CFLAGS: -I${SRCDIR}/../base -I${SRCDIR}/../../device/pjrt/abi -std=gnu11 -O2 -Wall -Wextra -Wshadow
// #include "ffi.h"
import "C"

import _ "github.com/openpathways/pathways/device/pjrt/ffi" // its C
