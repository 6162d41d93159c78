// Package system maps errors of the operating system to codes of core/status. It has no state; packages that do I/O
// import it.
package system

import (
	"errors"
	"io/fs"
	"slices"
	"syscall"

	"github.com/openpathways/pathways/core/status"
)

// Error wraps err, an error of the operating system, with context and with the code that matches it. Errors of package
// os name their file, so the message does too. An error that already has a code keeps it. Error(nil) returns nil.
//
//	RESOURCE_EXHAUSTED   a full disk, an exceeded quota, too many files, too little memory
//	PERMISSION_DENIED    missing rights, a read-only file system
//	NOT_FOUND            the file does not exist
//	ALREADY_EXISTS       the file exists
//	FAILED_PRECONDITION  the file is of the wrong kind, such as a directory
//	INTERNAL             anything else
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
