// Package system says which code of core/status fits an error of the operating system. It has no state and may be
// imported by every package that does I/O.
package system

import (
	"errors"
	"io/fs"
	"slices"
	"syscall"

	"github.com/openpathways/pathways/core/status"
)

// Error puts context in front of err, an error of the operating system, with the code that fits it. Errors of package
// os name their file, and so does the message then. An error that has a code keeps it; Error of nil is nil.
//
// A full disk, a quota and a bound on files or memory are RESOURCE_EXHAUSTED, a lack of rights and a file system that
// cannot be written PERMISSION_DENIED, what is not there NOT_FOUND, what is there already ALREADY_EXISTS, what is of
// the wrong kind FAILED_PRECONDITION. Anything else is INTERNAL.
func Error(err error, format string, args ...any) error {
	if status.CodeOf(err) == status.Unknown {
		err = status.New(codeOf(err), "%w", err)
	}
	return status.Wrap(err, format, args...)
}

func codeOf(err error) status.Code {
	is := func(numbers ...syscall.Errno) bool {
		return slices.ContainsFunc(numbers, func(n syscall.Errno) bool { return errors.Is(err, n) })
	}
	switch {
	case is(syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM):
		return status.ResourceExhausted
	case errors.Is(err, fs.ErrPermission), is(syscall.EROFS):
		return status.PermissionDenied
	case errors.Is(err, fs.ErrNotExist):
		return status.NotFound
	case errors.Is(err, fs.ErrExist):
		return status.AlreadyExists
	case is(syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.ENAMETOOLONG):
		return status.FailedPrecondition
	}
	return status.Internal
}
