// Package status is the one error vocabulary of the system. A code made in any
// layer (Go, wire, C, Python) reaches the user unchanged, with its message.
//
// The codes are those of absl and of PJRT, with the same numbers. A message
// says what was wrong, what was expected, and what to do. The package has no
// state and may be imported by every other package.
package status

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Code classifies an error. The zero Code is OK and never stands in an Error.
type Code uint32

// The codes, numbered as absl and PJRT number them.
const (
	OK Code = iota
	Cancelled
	Unknown
	InvalidArgument
	DeadlineExceeded
	NotFound
	AlreadyExists
	PermissionDenied
	ResourceExhausted
	FailedPrecondition
	Aborted
	OutOfRange
	Unimplemented
	Internal
	Unavailable
	DataLoss
	Unauthenticated
)

var names = [...]string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
	"ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
	"UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}

// String gives the code's name as absl and JAX print it, such as INVALID_ARGUMENT.
func (c Code) String() string {
	if int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("CODE_%d", uint32(c))
}

// Error is an error with a code. Make one with New or Wrap.
type Error struct {
	Code    Code
	Message string
	cause   error
}

// Error gives the message alone; the code is added where it is shown to a user,
// since JAX and absl put it in front themselves.
func (e *Error) Error() string { return e.Message }

// Unwrap gives the error that this one was made from, or nil.
func (e *Error) Unwrap() error { return e.cause }

// Count returns a number with its noun, as messages say it: "1 device", "2 devices", "0 processes".
func Count[N ~int | ~int32 | ~int64 | ~uint32 | ~uint64](n N, noun string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(noun, "s"), strings.HasSuffix(noun, "sh"), strings.HasSuffix(noun, "ch"):
		noun += "es"
	default:
		noun += "s"
	}
	return fmt.Sprint(n, " ", noun)
}

// New makes an error with a code and a formatted message. %w keeps a cause.
func New(code Code, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), cause: errors.Unwrap(err)}
}

// Parse reads an error as it is shown to a user, "CODE: message". Without such a code it is Unknown.
func Parse(text string) error {
	code, message, found := strings.Cut(text, ": ")
	if i := slices.Index(names[1:], code); found && i >= 0 {
		return &Error{Code: Code(i + 1), Message: message}
	}
	return &Error{Code: Unknown, Message: text}
}

// Wrap puts context in front of err's message and keeps its code. Wrap of nil
// is nil.
func Wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &Error{Code: CodeOf(err), Message: fmt.Sprintf(format, args...) + ": " + err.Error(), cause: err}
}

// CodeOf gives the code of the first Error in err's chain, OK for nil and
// Unknown for an error that carries none.
func CodeOf(err error) Code {
	if err == nil {
		return OK
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Unknown
}
