// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `bits!`: a 64-bit word with named bit fields.

/// Returns a mask of the bits `hi..=lo` of a quadword.
#[inline]
pub(crate) const fn mask(hi: u32, lo: u32) -> u64 {
    (u64::MAX >> (63 - hi)) & (u64::MAX << lo)
}

/// Returns bits `hi..=lo` of `raw`, shifted down to bit 0.
#[inline]
pub(crate) const fn get(raw: u64, hi: u32, lo: u32) -> u64 {
    (raw & mask(hi, lo)) >> lo
}

/// Returns `raw` with bits `hi..=lo` replaced by the low bits of `value`. Excess bits of `value`
/// are dropped.
#[inline]
pub(crate) const fn set(raw: u64, hi: u32, lo: u32, value: u64) -> u64 {
    (raw & !mask(hi, lo)) | ((value << lo) & mask(hi, lo))
}

/// Declares a newtype over `u64` with one getter and one `with_…` setter per field.
///
/// A setter drops the bits of its value that exceed the field. `FIELDS` lists the (name, msb, lsb)
/// of each field.
macro_rules! bits {
    (
        $(#[$meta:meta])*
        $vis:vis struct $Name:ident {
            $(
                $(#[$fmeta:meta])*
                $get:ident / $with:ident : $t:tt [$hi:literal : $lo:literal];
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
        $vis struct $Name(pub u64);

        #[allow(clippy::len_without_is_empty)]
        impl $Name {
            /// Name, most and least significant bit of every field.
            pub const FIELDS: &'static [(&'static str, u32, u32)] =
                &[$((stringify!($get), $hi, $lo)),*];
            /// All bits that belong to a named field.
            pub const KNOWN: u64 = 0 $(| $crate::bits::mask($hi, $lo))*;

            /// Wraps a raw register or memory word.
            #[inline]
            pub const fn from_raw(raw: u64) -> Self {
                Self(raw)
            }

            /// Returns the raw word.
            #[inline]
            pub const fn raw(self) -> u64 {
                self.0
            }

            $(
                $(#[$fmeta])*
                #[inline]
                pub const fn $get(self) -> $t {
                    bits!(@get $t, $crate::bits::get(self.0, $hi, $lo))
                }

                #[doc = concat!(
                    "Copy with field `", stringify!($get),
                    "` replaced; bits that do not fit are dropped."
                )]
                #[must_use]
                #[inline]
                pub const fn $with(self, value: $t) -> Self {
                    Self($crate::bits::set(self.0, $hi, $lo, value as u64))
                }
            )*
        }

        impl core::fmt::Debug for $Name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($Name))
                    $(.field(stringify!($get), &self.$get()))*
                    .finish()
            }
        }

        impl From<u64> for $Name {
            fn from(raw: u64) -> Self {
                Self(raw)
            }
        }

        impl From<$Name> for u64 {
            fn from(value: $Name) -> u64 {
                value.0
            }
        }
    };
    (@get bool, $e:expr) => { $e != 0 };
    (@get $t:tt, $e:expr) => { $e as $t };
}
