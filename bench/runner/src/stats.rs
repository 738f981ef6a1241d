//! Medians and ratios.

use serde::Serialize;

/// Returns the median; `None` if there are no values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut v: Vec<f64> = values.iter().copied().filter(|x| x.is_finite()).collect();
    v.sort_by(f64::total_cmp);
    let mid = v.len() / 2;
    match v.len() {
        0 => None,
        n if n % 2 == 1 => v.get(mid).copied(),
        _ => Some((v[mid - 1] + v[mid]) / 2.0),
    }
}

/// Median and range of ratios.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Median of the ratios.
    pub median: f64,
    /// Smallest ratio.
    pub min: f64,
    /// Largest ratio.
    pub max: f64,
}

impl Spread {
    /// Computes median and range of values; `None` if there are no values.
    pub fn of(values: &[f64]) -> Option<Self> {
        Some(Self {
            median: median(values)?,
            min: values.iter().copied().reduce(f64::min)?,
            max: values.iter().copied().reduce(f64::max)?,
        })
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!(
            "{} ({}–{})",
            short(self.median),
            short(self.min),
            short(self.max)
        );
        f.pad(&text)
    }
}

/// Divides values of the same repetition, upper by lower. Values without a partner are left out.
pub fn ratios(upper: &[(usize, f64)], lower: &[(usize, f64)]) -> Vec<f64> {
    upper
        .iter()
        .filter_map(|(rep, u)| {
            let (_, l) = lower.iter().find(|(r, _)| r == rep)?;
            (*l > 0.0).then_some(u / l)
        })
        .collect()
}

/// Formats a number with about three significant digits and without exponent.
pub fn short(x: f64) -> String {
    match x.abs() {
        a if !a.is_finite() => "-".into(),
        a if a >= 99.95 => format!("{x:.0}"),
        a if a >= 9.995 => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[f64::NAN]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[9.0, 1.0, 2.0, 4.0]), Some(3.0));
    }

    #[test]
    fn ratios_pair_repetitions() {
        let exn = [(0, 10.0), (1, 30.0), (3, 5.0)];
        let other = [(1, 60.0), (0, 5.0), (2, 1.0), (3, 0.0)];
        assert_eq!(ratios(&exn, &other), [2.0, 0.5]);
        let s = Spread::of(&[2.0, 0.5, 1.0]).unwrap();
        assert_eq!((s.median, s.min, s.max), (1.0, 0.5, 2.0));
        assert_eq!(s.to_string(), "1.00 (0.50–2.00)");
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn numbers_are_short() {
        for (x, text) in [
            (0.0, "0.00"),
            (1.234, "1.23"),
            (12.345, "12.3"),
            (9.999, "10.0"),
            (123.4, "123"),
            (1e6, "1000000"),
        ] {
            assert_eq!(short(x), text);
        }
    }
}
