package arrowio

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/bits"
	"reflect"
	"slices"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/openpathways/pathways/core/status"
)

const tensorName = "arrow.fixed_shape_tensor"

// TensorType is Arrow's canonical extension arrow.fixed_shape_tensor: each element is an
// array of one shape, stored as a fixed-size list. Pass it to arrow.RegisterExtensionType
// so that Arrow's readers know it; this package reads tensors either way.
type TensorType struct {
	arrow.ExtensionBase
	told tensor
}

// TensorArray is an Arrow array of tensors. Its Storage contains the elements.
type TensorArray struct{ array.ExtensionArrayBase }

// tensor is the extension's metadata.
type tensor struct {
	Shape       []int64  `json:"shape"`
	Permutation []int    `json:"permutation,omitempty"`
	Names       []string `json:"dim_names,omitempty"`
}

func parseTensor(told string) (t tensor, err error) {
	d := json.NewDecoder(bytes.NewReader([]byte(told)))
	if err := d.Decode(&t); err != nil || d.More() || t.Shape == nil {
		return t, fmt.Errorf("the metadata of a tensor is not an object with a shape: %.200s", told)
	}
	if t.elements() < 0 {
		return t, fmt.Errorf("the metadata of a tensor has invalid dimensions: %.200s", told)
	}
	if p := slices.Sorted(slices.Values(t.Permutation)); t.Permutation != nil {
		for i := range t.Shape {
			if len(p) != len(t.Shape) || p[i] != i {
				return t, fmt.Errorf("the permutation of a tensor is not one of its %d dimensions: %.200s", len(t.Shape), told)
			}
		}
	}
	return t, nil
}

// elements returns the number of elements, or -1 if it is not valid.
func (t tensor) elements() int64 {
	n := uint64(1)
	for _, d := range t.Shape {
		hi, lo := bits.Mul64(n, uint64(d))
		if d < 0 || hi != 0 || lo >= uint64(longest) {
			return -1
		}
		n = lo
	}
	return int64(n)
}

// order returns, for each logical dimension, its index in the order of memory.
func (t tensor) order() []int {
	if t.Permutation != nil {
		return t.Permutation
	}
	order := make([]int, len(t.Shape))
	for i := range order {
		order[i] = i
	}
	return order
}

// NewTensorType returns the type of tensors of a shape. It panics for a shape of no
// elements, or of more than Arrow's lists can have, as arrow.FixedSizeListOf does.
func NewTensorType(element arrow.DataType, shape []int64) *TensorType {
	t := tensor{Shape: slices.Clone(shape)}
	n := t.elements()
	if n < 1 || n > 1<<31-1 {
		panic(fmt.Sprintf("arrowio: %v is not a valid shape of a tensor in a list", shape))
	}
	return &TensorType{arrow.ExtensionBase{Storage: arrow.FixedSizeListOf(int32(n), element)}, t}
}

// Shape returns the dimensions of each element in the order of memory.
func (t *TensorType) Shape() []int64 { return slices.Clone(t.told.Shape) }

// ArrayType implements arrow.ExtensionType.
func (*TensorType) ArrayType() reflect.Type { return reflect.TypeFor[TensorArray]() }

// ExtensionName implements arrow.ExtensionType.
func (*TensorType) ExtensionName() string { return tensorName }

// String implements arrow.DataType.
func (t *TensorType) String() string {
	return fmt.Sprintf("extension<%s%v of %v>", tensorName, t.told.Shape, t.Storage)
}

// ExtensionEquals implements arrow.ExtensionType.
func (t *TensorType) ExtensionEquals(other arrow.ExtensionType) bool {
	o, ok := other.(*TensorType)
	return ok && arrow.TypeEqual(t.Storage, o.Storage) && slices.Equal(t.told.Shape, o.told.Shape) &&
		slices.Equal(t.told.order(), o.told.order())
}

// Serialize implements arrow.ExtensionType.
func (t *TensorType) Serialize() string {
	told, err := json.Marshal(t.told)
	if err != nil {
		panic(err) // cannot fail: numbers and names
	}
	return string(told)
}

// Deserialize implements arrow.ExtensionType.
func (*TensorType) Deserialize(storage arrow.DataType, data string) (arrow.ExtensionType, error) {
	list, ok := storage.(*arrow.FixedSizeListType)
	t, err := parseTensor(data)
	if err == nil && (!ok || int64(list.Len()) != t.elements()) {
		err = fmt.Errorf("tensors of the shape %v are stored as %v", t.Shape, storage)
	}
	if err != nil {
		return nil, status.New(status.InvalidArgument, "%w", err)
	}
	return &TensorType{arrow.ExtensionBase{Storage: storage}, t}, nil
}
