// Package status defines the errors of the whole system. A code that any layer
// (Go, wire, C, Python) returns reaches the user unchanged, with its message.
//
// The codes are those of absl and of PJRT, with the same numbers. A message
// says what was wrong, what was expected, and what to do. The package has no
// state and may be imported by every other package.
package status

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Code classifies an error. The zero Code is OK, which no Error has.
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

// String returns the code's name as absl and JAX print it, such as INVALID_ARGUMENT.
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

// Error returns the message without the code. JAX and absl prefix the code themselves;
// where they do not, whatever shows the error to a user adds it.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the error that this one wraps, or nil.
func (e *Error) Unwrap() error { return e.cause }

// Count returns a number with its noun: "1 device", "2 devices", "0 processes".
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

// Are returns a number as the subject of a sentence: "1 is", "2 are".
func Are[N ~int | ~uint32](n N) string {
	if n == 1 {
		return "1 is"
	}
	return fmt.Sprint(n, " are")
}

// maxQuote is how many bytes of a text an error quotes: those of the longest name that somebody reads, and then some.
const maxQuote = 256

// Quote returns a text as %q prints it. Of one that is longer than 256 bytes it returns the beginning, and its length:
// a name that a client has chosen may have any.
func Quote(text string) string {
	if len(text) <= maxQuote {
		return strconv.Quote(text)
	}
	return fmt.Sprintf("%q… of %d bytes", text[:maxQuote], len(text))
}

// New returns an error with a code and a formatted message. %w keeps a cause.
func New(code Code, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), cause: errors.Unwrap(err)}
}

// Parse parses an error in the form in which users see it, "CODE: message". Without a known code, its code is Unknown.
func Parse(text string) error {
	code, message, found := strings.Cut(text, ": ")
	if i := slices.Index(names[1:], code); found && i >= 0 {
		return &Error{Code: Code(i + 1), Message: message}
	}
	return &Error{Code: Unknown, Message: text}
}

// Wrap returns an error with err's code whose message is the formatted context, a
// colon, and err's message. Wrap(nil) returns nil.
func Wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &Error{Code: CodeOf(err), Message: fmt.Sprintf(format, args...) + ": " + err.Error(), cause: err}
}

// Brief returns the text of an error as it is sent to other processes: what is longer than 16 KiB without its middle.
// The beginning says what was wrong, and causes are at the end. Compilers put whole programs into their errors, and
// Python the text of a user's exception.
func Brief(err error) string {
	const begin, end = 12 << 10, 4 << 10
	text := err.Error()
	left := len(text) - begin - end
	if left <= 0 {
		return text
	}
	return fmt.Sprintf("%s … [%d bytes left out] … %s", text[:begin], left, text[len(text)-end:])
}

// CodeOf returns the code of the first Error in err's chain, OK for nil, and
// Unknown for an error that has no code.
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
