"""Physics, statistics, numerical methods, linear algebra and signals, as programs for `program_table`."""

import math

from program_table import complex_normal, near_one, normal, positive_definite, program, uniform, weight


def _lattice(rng):
    """Six atoms near the corners of a grid, so that none are close to each other."""
    corners = [[i, j, k] for i in (0, 1.5) for j in (0, 1.5) for k in (0, 1.5)][:6]
    return corners + 0.1 * rng.standard_normal((6, 3))


def _pair_energy(m, positions, strength, radius):
    """Lennard-Jones energy of all pairs."""
    apart = positions[:, None] - positions[None, :]
    pairs = ~m.np.eye(positions.shape[0], dtype=bool)
    squares = m.np.where(pairs, m.np.sum(apart**2, axis=-1), 1.0)
    sixth = (radius**2 / squares) ** 3
    return m.np.sum(m.np.where(pairs, 4 * strength * (sixth**2 - sixth), 0.0)) / 2


@program(positions=_lattice, wanted_energy=normal(), wanted_forces=normal(6, 3), strength=near_one(), radius=near_one())
def energy_and_force_loss(m, positions, wanted_energy, wanted_forces, strength, radius):
    """The loss contains forces, which are a gradient already."""
    energy, gradient = m.value_and_grad(lambda r: _pair_energy(m, r, strength, radius))(positions)
    return (energy - wanted_energy) ** 2 + m.np.mean((-gradient - wanted_forces) ** 2), -gradient


@program(positions=_lattice, species=normal(6, 3), w1=weight(11, 8), w2=weight(8), wanted=normal(6, 3))
def neural_potential(m, positions, species, w1, w2, wanted):
    """A network of Gaussian features of the distances; its forces are fitted."""

    def energy(positions):
        apart = positions[:, None] - positions[None, :]
        pairs = ~m.np.eye(6, dtype=bool)
        distance = m.np.sqrt(m.np.where(pairs, m.np.sum(apart**2, axis=-1), 1.0))
        centres = m.np.linspace(0.5, 4.0, 8, dtype=positions.dtype)
        features = m.np.where(pairs[..., None], m.np.exp(-((distance[..., None] - centres) ** 2)), 0.0)
        atoms = m.np.concatenate([m.np.sum(features, axis=1), species], axis=-1)
        return m.np.sum(m.np.tanh(atoms @ w1) @ w2)

    return m.np.mean((m.grad(energy)(positions) + wanted) ** 2)


@program(x=uniform(-1, 1, 6), t=uniform(0, 1, 6), w1=weight(2, 8), b1=normal(8), w2=weight(8, 8), w3=weight(8))
def korteweg_de_vries_residual(m, x, t, w1, b1, w2, w3):
    """A physics-informed network: u_t + 6·u·u_x + u_xxx needs third derivatives, and the loss a fourth."""

    def u(x, t):
        return m.np.tanh(m.np.tanh(m.np.stack([x, t]) @ w1 + b1) @ w2) @ w3

    u_x = m.grad(u)
    u_xxx = m.grad(m.grad(u_x))

    def residual(x, t):
        return m.grad(u, argnums=1)(x, t) + 6 * u(x, t) * u_x(x, t) + u_xxx(x, t)

    return m.np.mean(m.vmap(residual)(x, t) ** 2)


@program(x=uniform(-1, 1, 5, 2), w1=weight(2, 8), b1=normal(8), w2=weight(8))
def poisson_residual_by_forward_mode(m, x, w1, b1, w2):
    """The Laplacian by second derivatives along each axis, forward over forward."""

    def u(x):
        return m.np.sin(x @ w1 + b1) @ w2

    def second(x, direction):
        def slope(x):
            return m.jvp(u, (x,), (direction,))[1]

        return m.jvp(slope, (x,), (direction,))[1]

    def laplacian(x):
        return m.np.sum(m.vmap(second, in_axes=(None, 0))(x, m.np.eye(2, dtype=x.dtype)))

    return m.np.mean((m.vmap(laplacian)(x) + m.np.prod(x, axis=-1)) ** 2)


@program(start=normal(3, 2), w1=weight(2, 8), b1=normal(8), w2=weight(8, 2))
def neural_ode_by_runge_kutta(m, start, w1, b1, w2):
    def speed(y):
        return m.np.tanh(y @ w1 + b1) @ w2

    def step(y, width):
        k1 = speed(y)
        k2 = speed(y + width / 2 * k1)
        k3 = speed(y + width / 2 * k2)
        k4 = speed(y + width * k3)
        y = y + width / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y, y

    return m.scan(step, start, m.np.full(5, 0.2, dtype=start.dtype))


@program(q=normal(2), p=normal(2), mass=near_one(2))
def leapfrog_of_a_hamiltonian(m, q, p, mass):
    def potential(q):
        return m.np.sum(q**2) / 2 + q[0] ** 2 * q[1] - q[1] ** 3 / 3

    def step(_, state):
        q, p = state
        p = p - 0.05 * m.grad(potential)(q)
        q = q + 0.1 * p / mass
        return q, p - 0.05 * m.grad(potential)(q)

    return m.fori_loop(0, 5, step, (q, p))


@program(angle=normal(2), speed=normal(2), length=near_one(2))
def acceleration_from_a_lagrangian(m, angle, speed, length):
    """The double pendulum: solve M(q)·a = ∂L/∂q - ∂²L/∂q̇∂q·q̇ with matrices of second derivatives."""

    def lagrangian(q, v):
        x1 = length[0] * m.np.stack([m.np.cos(q[0]), m.np.sin(q[0])]) * v[0]
        x2 = x1 + length[1] * m.np.stack([m.np.cos(q[1]), m.np.sin(q[1])]) * v[1]
        height = -2 * length[0] * m.np.cos(q[0]) - length[1] * m.np.cos(q[1])
        return (x1 @ x1 + x2 @ x2) / 2 - 9.8 * height

    mass = m.hessian(lagrangian, argnums=1)(angle, speed)
    mixed = m.jacfwd(m.grad(lagrangian, argnums=1), argnums=0)(angle, speed)
    return m.np.linalg.solve(mass, m.grad(lagrangian)(angle, speed) - mixed @ speed)


_GP = {"x": uniform(-2, 2, 7, 2), "y": normal(7), "scale": near_one(2), "noise": uniform(0.2, 0.5)}


def _kernel(m, a, b, scale):
    apart = (a[:, None] - b[None, :]) / scale
    return m.np.exp(-m.np.sum(apart**2, axis=-1) / 2)


@program(**_GP)
def gaussian_process_likelihood(m, x, y, scale, noise):
    covariance = _kernel(m, x, x, scale) + noise * m.np.eye(7, dtype=x.dtype)
    factor = m.np.linalg.cholesky(covariance)
    white = m.solve_triangular(factor, y, lower=True)
    return white @ white / 2 + m.np.sum(m.np.log(m.np.diagonal(factor))) + 3.5 * math.log(2 * math.pi)


@program(**_GP, new=uniform(-2, 2, 3, 2))
def gaussian_process_prediction(m, x, y, scale, noise, new):
    """Mean and covariance at new points; the factor is used for two triangular systems."""
    covariance = _kernel(m, x, x, scale) + noise * m.np.eye(7, dtype=x.dtype)
    factor = m.np.linalg.cholesky(covariance)
    weights = m.solve_triangular(factor, m.solve_triangular(factor, y, lower=True), lower=True, trans=1)
    across = _kernel(m, new, x, scale)
    half = m.solve_triangular(factor, across.T, lower=True)
    return across @ weights, _kernel(m, new, new, scale) - half.T @ half


@program(
    rows=normal(5, 2), moves=normal(3, 3, scale=0.4), sees=normal(2, 3), q=positive_definite(3), r=positive_definite(2)
)
def kalman_filter_likelihood(m, rows, moves, sees, q, r):
    def step(state, row):
        mean, cov = moves @ state[0], moves @ state[1] @ moves.T + q
        spread = sees @ cov @ sees.T + r
        gain = m.np.linalg.solve(spread, sees @ cov).T
        error = row - sees @ mean
        fit = error @ m.np.linalg.solve(spread, error) + m.np.linalg.slogdet(spread)[1]
        return (mean + gain @ error, cov - gain @ sees @ cov), fit

    start = (m.np.zeros(3, dtype=rows.dtype), m.np.eye(3, dtype=rows.dtype))
    (mean, cov), fits = m.scan(step, start, rows)
    return -m.np.sum(fits) / 2, mean, cov


@program(a=normal(3, 3), b=normal(3), x=normal(5, 3))
def matrix_exponential_by_series(m, a, b, x):
    """exp(a) by a Taylor series of a/16, squared four times; and the determinant that it must have."""
    small, term = a / 16, m.np.eye(3, dtype=a.dtype)
    total = term
    for n in range(1, 9):
        term = term @ small / n
        total = total + term
    total = m.np.linalg.matrix_power(total, 16)
    return x @ total @ b, m.np.linalg.det(total), m.np.trace(total)


@program(a=positive_definite(4), b=normal(4, 2))
def systems_and_inverses(m, a, b):
    _, log_det = m.np.linalg.slogdet(a)
    return m.np.linalg.solve(a, b), m.np.linalg.inv(a), m.np.linalg.det(a), log_det, m.np.linalg.pinv(a)


@program(a=normal(5, 3))
def invariants_of_the_svd(m, a):
    """Nuclear norm, spectral norm, a low-rank approximation: what does not depend on the signs of vectors."""
    u, s, vh = m.np.linalg.svd(a, full_matrices=False)
    return m.np.sum(s), s[0], (u[:, :2] * s[:2]) @ vh[:2], (u * m.np.log1p(s)) @ vh


@program(a=positive_definite(4), x=normal(4))
def functions_of_a_symmetric_matrix(m, a, x):
    values, vectors = m.np.linalg.eigh((a + a.T) / 2)
    root = (vectors * m.np.sqrt(values)) @ vectors.T
    return values, root, x @ (vectors * m.np.log(values)) @ vectors.T @ x


@program(a=normal(5, 3), b=normal(5))
def least_squares_by_qr(m, a, b):
    q, r = m.np.linalg.qr(a)
    solution = m.solve_triangular(r, q.T @ b)
    return solution, m.np.sum((a @ solution - b) ** 2), m.np.linalg.norm(a, axis=0)


@program(electrons=normal(2, 2), w=weight(2, 2), b=normal(2))
def local_energy_of_a_slater_determinant(m, electrons, w, b):
    """-½·∇²ψ/ψ + V, from the gradient and Laplacian of log|ψ|; the Laplacian by Hessian-vector products."""

    def log_psi(flat):
        places = flat.reshape(2, 2)
        orbitals = m.np.tanh(places @ w + b) * m.np.exp(-m.np.sum(places**2, axis=-1, keepdims=True) / 4)
        return m.np.linalg.slogdet(orbitals + 2 * m.np.eye(2, dtype=flat.dtype))[1]

    flat = electrons.reshape(4)
    gradient = m.grad(log_psi)(flat)
    products = m.vmap(lambda v: m.jvp(m.grad(log_psi), (flat,), (v,))[1])(m.np.eye(4, dtype=flat.dtype))
    return -(m.np.trace(products) + gradient @ gradient) / 2 + m.np.sum(flat**2) / 2


@program(signal=normal(2, 32), kernel=normal(2, 9), target=normal(2, 40))
def convolution_by_fft(m, signal, kernel, target):
    n = 40
    product = m.np.fft.rfft(signal, n) * m.np.fft.rfft(kernel, n)
    result = m.np.fft.irfft(product, n)
    return m.np.mean((result - target) ** 2), result


@program(u=normal(16), viscosity=uniform(0.01, 0.1))
def burgers_equation_by_spectral_steps(m, u, viscosity):
    waves = 1j * m.np.fft.fftfreq(16, 1 / 16).astype(m.complex(u[0], u[0]).dtype)

    def step(u, _):
        spectrum = m.np.fft.fft(u)
        slope, bend = m.np.real(m.np.fft.ifft(waves * spectrum)), m.np.real(m.np.fft.ifft(waves * waves * spectrum))
        u = u + 0.01 * (viscosity * bend - u * slope)
        return u, m.np.sum(u**2)

    return m.scan(step, u, None, length=3)


@program(x=normal(2, 16), window=near_one(8))
def spectrogram_loss(m, x, window):
    """Overlapping frames, their spectra, and the logarithm of the power."""
    places = m.np.arange(0, 9, 4)[:, None] + m.np.arange(8)
    power = m.np.abs(m.np.fft.rfft(x[:, places] * window, axis=-1)) ** 2
    return m.np.mean(m.np.log(power + 0.1)), power


@program(image=normal(6, 8))
def filtering_in_two_dimensions(m, image):
    spectrum = m.np.fft.fft2(image)
    rows, columns = (m.np.fft.fftfreq(n, 1 / n).astype(image.dtype) / n for n in (6, 8))
    low = m.np.exp(-20 * (rows[:, None] ** 2 + columns**2))
    smooth = m.np.real(m.np.fft.ifft2(spectrum * low))
    return smooth, m.np.mean(m.np.abs(m.np.fft.fftshift(spectrum)))


@program(z=complex_normal(4), w=complex_normal(4, 3), c=complex_normal(3))
def complex_network(m, z, w, c):
    """Complex parameters and a real loss, with conjugates and absolute values on the way."""
    hidden = z @ w + c
    hidden = hidden * m.np.exp(-m.np.abs(hidden)) + m.np.conj(hidden) ** 2 / (2 + m.np.abs(hidden) ** 2)
    return m.np.sum(m.np.abs(hidden - c) ** 2) + m.np.real(m.np.sum(m.np.exp(1j * hidden / 4)))


@program(z=complex_normal(5), x=normal(5))
def complex_functions(m, z, x):
    """Holomorphic functions, and the ways between real and complex numbers; complex results."""
    y = m.np.sin(z) + m.np.exp(z) / (z**2 + 9) + m.np.sqrt(z) * m.np.log(z)
    return y, m.complex(x, m.np.tanh(x)) * z, m.np.angle(z) + m.np.imag(z), m.np.cumsum(z * x), m.np.outer(z, x).T @ z


@program(
    spot=uniform(80, 120, 4),
    strike=uniform(80, 120, 4),
    rate=uniform(0.01, 0.05),
    vol=uniform(0.1, 0.4),
    years=near_one(4),
)
def option_prices_and_sensitivities(m, spot, strike, rate, vol, years):
    def price(spot, strike, rate, vol, years):
        def normal_cdf(x):
            return 0.5 * (1 + m.erf(x / math.sqrt(2)))

        d1 = (m.np.log(spot / strike) + (rate + vol**2 / 2) * years) / (vol * m.np.sqrt(years))
        d2 = d1 - vol * m.np.sqrt(years)
        return spot * normal_cdf(d1) - strike * m.np.exp(-rate * years) * normal_cdf(d2)

    greeks = m.vmap(m.grad(price, argnums=(0, 3, 4)), in_axes=(0, 0, None, None, 0))
    gamma = m.vmap(m.grad(m.grad(price)), in_axes=(0, 0, None, None, 0))
    arguments = spot, strike, rate, vol, years
    return price(*arguments), greeks(*arguments), gamma(*arguments)


@program(x=normal(8, 3), y=uniform(0, 1, 8), w=weight(3))
def newton_step_of_logistic_regression(m, x, y, w):
    def loss(w):
        logits = x @ w
        return m.np.mean(m.nn.softplus(logits) - y * logits) + 0.1 * w @ w

    return w - m.np.linalg.solve(m.hessian(loss)(w), m.grad(loss)(w)), loss(w)


@program(cost=uniform(0, 1, 5, 6), a=normal(5), b=normal(6))
def optimal_transport_by_sinkhorn(m, cost, a, b):
    log_a, log_b = m.nn.log_softmax(a), m.nn.log_softmax(b)

    def step(_, potentials):
        f, g = potentials
        f = 0.1 * log_a - 0.1 * m.nn.logsumexp((g[None, :] - cost) / 0.1, axis=1)
        return f, 0.1 * log_b - 0.1 * m.nn.logsumexp((f[:, None] - cost) / 0.1, axis=0)

    f, g = m.fori_loop(0, 5, step, (m.np.zeros_like(a), m.np.zeros_like(b)))
    plan = m.np.exp((f[:, None] + g[None, :] - cost) / 0.1)
    return m.np.sum(plan * cost), plan


@program(x=normal(8, 2), centres=normal(3, 2), shares=normal(3))
def expectation_maximisation(m, x, centres, shares):
    for _ in range(2):
        squares = m.np.sum((x[:, None] - centres) ** 2, axis=-1)
        parts = m.nn.softmax(m.nn.log_softmax(shares) - squares / 2, axis=-1)
        total = m.np.sum(parts, axis=0)
        centres, shares = parts.T @ x / total[:, None], m.np.log(total)
    return centres, m.nn.softmax(shares)


@program(rate=uniform(0.5, 3, 5), shape=uniform(1, 4, 5), counts=uniform(0.5, 6, 5))
def likelihoods_with_gamma_functions(m, rate, shape, counts):
    poisson = counts * m.np.log(rate) - rate - m.lgamma(counts + 1)
    gamma = shape * m.np.log(rate) + (shape - 1) * m.np.log(counts) - rate * counts - m.lgamma(shape)
    student = m.lgamma((shape + 1) / 2) - m.lgamma(shape / 2) - (shape + 1) / 2 * m.np.log1p(counts**2 / shape)
    return m.np.sum(poisson), gamma, student, m.np.log(m.erfc(counts / 3)), m.erf_inv(m.np.tanh(shape / 4))


@program(matrix=normal(4, 3), start=normal(3))
def spectral_norm_by_power_iteration(m, matrix, start):
    """The iterations are not differentiated, only the estimate."""

    def step(_, v):
        v = matrix.T @ (matrix @ v)
        return v / m.np.linalg.norm(v)

    v = m.stop_gradient(m.fori_loop(0, 4, step, start))
    u = matrix @ v
    return u @ u / m.np.linalg.norm(u)


@program(x=uniform(0.2, 2.8, 6), heights=normal(4), coefficients=normal(4))
def interpolation_and_quadrature(m, x, heights, coefficients):
    grid = m.np.arange(4, dtype=x.dtype)
    values = m.np.interp(x, grid, heights)
    fine = m.np.linspace(0, 1, 9, dtype=x.dtype)
    area = m.np.trapezoid(m.np.polyval(coefficients, fine) ** 2, fine)
    return values, area, m.np.diff(values), m.np.gradient(m.np.polyval(coefficients, fine))
