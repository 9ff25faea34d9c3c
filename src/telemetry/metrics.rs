//! One declaration for each metric: its name, its labels and its help text stand where its handle does.

/// Declares a struct of metrics. The doc comment of a field is the help text that a scraper shows, so it says what is
/// counted, and in which unit.
///
/// The struct gets `unregistered` (handles that nobody collects yet), `register` (shows them under a registry; fails when it has
/// metrics of these names already) and `registered` (both).
///
/// ```
/// seckill::metrics! {
///     /// What the till counts.
///     pub struct Till {
///         /// Coins taken.
///         pub coins: IntCounter = "till_coins_total",
///         /// Notes taken, by their value.
///         pub notes: IntCounterVec["value"] = "till_notes_total",
///         /// Time for one customer.
///         pub seconds: Histogram(&[0.1, 1.0]) = "till_seconds",
///     }
/// }
///
/// let registry = prometheus::Registry::new();
/// let till = Till::registered(&registry)?;
/// till.notes.with_label_values(&["5"]).inc();
/// assert_eq!(registry.gather().len(), 3);
/// # Ok::<(), prometheus::Error>(())
/// ```
#[macro_export]
macro_rules! metrics {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $(
                $(#[doc = $help:literal])+
                $field_visibility:vis $field:ident: $kind:ident $([$($label:literal),+])? $(($buckets:expr))? = $metric:literal
            ),+ $(,)?
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug)]
        $visibility struct $name {
            $(
                $(#[doc = $help])+
                $field_visibility $field: prometheus::$kind,
            )+
        }

        #[allow(dead_code, reason = "some are shown later than they are made, some at once")]
        impl $name {
            /// Handles that nobody collects until they are registered.
            $visibility fn unregistered() -> Self {
                Self {
                    $($field: {
                        let help = concat!($($help),+).trim();
                        let made = $crate::metrics!(@make $kind, $metric, help $(, [$($label),+])? $(, ($buckets))?);
                        made.expect("the declaration is a valid metric")
                    },)+
                }
            }

            /// Shows the metrics under a registry.
            ///
            /// # Errors
            /// When it has metrics of these names already.
            $visibility fn register(&self, registry: &prometheus::Registry) -> prometheus::Result<()> {
                $(registry.register(Box::new(self.$field.clone()))?;)+
                Ok(())
            }

            /// New metrics, shown under a registry.
            ///
            /// # Errors
            /// When it has metrics of these names already.
            $visibility fn registered(registry: &prometheus::Registry) -> prometheus::Result<Self> {
                let metrics = Self::unregistered();
                metrics.register(registry)?;
                Ok(metrics)
            }
        }
    };

    (@make Histogram, $name:expr, $help:expr $(, ($buckets:expr))?) => {
        prometheus::Histogram::with_opts($crate::metrics!(@histogram $name, $help $(, $buckets)?))
    };
    (@make HistogramVec, $name:expr, $help:expr, [$($label:literal),+] $(, ($buckets:expr))?) => {
        prometheus::HistogramVec::new($crate::metrics!(@histogram $name, $help $(, $buckets)?), &[$($label),+])
    };
    (@make $kind:ident, $name:expr, $help:expr) => { prometheus::$kind::new($name, $help) };
    (@make $kind:ident, $name:expr, $help:expr, [$($label:literal),+]) => {
        prometheus::$kind::new(prometheus::Opts::new($name, $help), &[$($label),+])
    };

    (@histogram $name:expr, $help:expr) => { prometheus::HistogramOpts::new($name, $help) };
    (@histogram $name:expr, $help:expr, $buckets:expr) => {
        prometheus::HistogramOpts::new($name, $help).buckets($buckets.to_vec())
    };
}
